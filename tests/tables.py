"""Tables as text: a line for a row, two spaces or more between its cells."""

import re


def rows(table: str) -> list[list[str]]:
    """The cells of each row, without the table's head."""
    lines = table.strip().splitlines()
    return [re.split(r"\s{2,}", line.strip()) for line in lines[1:]]


def like(words: str) -> str:
    """The expression that finds these words, with anything for each "…"."""
    return re.escape(words).replace("…", ".*")
