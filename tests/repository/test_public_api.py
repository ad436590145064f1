"""The public API: importing it is cheap, and everything that it lists is there and documented."""

import inspect
import re

import course_utils
from tests.files import ROOT
from tests.python import python

IMPORT = """
import sys, threading, psutil
import course_utils
heavy = {"torch", "numpy", "matplotlib", "IPython", "sklearn"} & set(sys.modules)
assert not heavy, f"imported: {heavy}"
assert threading.active_count() == 1 and not psutil.Process().children()
"""


def test_import_is_light_silent_and_starts_nothing():
    done = python("-W", "error", "-c", IMPORT)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_is_public_is_there_and_documented():
    for name in course_utils.__all__:
        public = getattr(course_utils, name)
        own = vars(public).get("__doc__") if inspect.isclass(public) else public.__doc__
        # What a dataclass or a NamedTuple writes itself is its signature: "Span(rank: int, …".
        documented = own and not own.startswith(f"{name}(")
        assert documented, f"{name} has no docstring of its own"


def test_the_page_of_the_api_names_what_is_public():
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(names) == course_utils.__all__
