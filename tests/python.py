"""Commands that tests run to their end, which must be a good one: what they print."""

import subprocess
import sys
from typing import Any


def run(*words: object, **options: Any) -> subprocess.CompletedProcess:
    """Run these words as a command."""
    command = [*map(str, words)]
    options = {"timeout": 600} | options
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def python(*words: object, **options: Any) -> subprocess.CompletedProcess:
    """Run `python` with these words."""
    return run(sys.executable, *words, **options)
