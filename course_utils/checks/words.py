"""What happened on the ranks of a check, in the check's own words."""

from __future__ import annotations

import re

from ..errors import RankError

SIGABRT = " (SIGABRT: compiled code gave up)"


def in_words(error: RankError) -> str:
    """What is said of the ranks' failure: a check has no `time_limit` and leaves no `error` behind."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", error.said)  # torch prints some errors in bold
    text = re.sub(r"had not finished after the time limit of (\S+) s", r"had not finished after \1 s", said)
    if re.search(r"waits? in i?(send|recv)\b", text):
        text = text.replace("a collective needs every rank.", "a message needs both its sender and its receiver.")
    if SIGABRT in text:
        said = [line for output in error.run.output for line in output.splitlines() if line.strip()]
        last = said[-1] if said else ""
        words = next((line for line in said if "Check failed" in line or "enforce fail" in line), last)
        text = text.replace(SIGABRT, f". Its last words: {words.rpartition('] ')[2][:200]}" if words else "")
        if "op.preamble.length" in words:  # gloo's: a rank was sent more than it expects
            text += "\nA frequent cause: the ranks gave tensors of different sizes to one collective."
    if error.run.ranks == 1:
        text = text.replace("rank 0 of 1 ", "It ").replace("rank 0 is here:", "It is here:")
    return text
