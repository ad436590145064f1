"""The public face: importing it is cheap, and everything that it lists is there and documented."""

import inspect
import subprocess
import sys

import course_utils

IMPORT = """
import sys, threading, psutil
import course_utils
heavy = {"torch", "numpy", "matplotlib", "IPython", "sklearn"} & set(sys.modules)
assert not heavy, f"imported: {heavy}"
assert threading.active_count() == 1 and not psutil.Process().children()
"""


def test_import_is_light_silent_and_starts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_public_is_there_and_documented() -> None:
    assert all(inspect.getdoc(getattr(course_utils, name)) for name in course_utils.__all__)
