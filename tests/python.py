"""A Python of its own for tests: what it prints and how it ends."""

import subprocess
import sys
from typing import Any


def python(*words: object, **options: Any) -> subprocess.CompletedProcess:
    """Run `python` with these words to its end."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
