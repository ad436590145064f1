"""What a learner reads after a mistake: the value, what it should have been, the next thing to do,
in plain words.
"""

import ast
import re

import pytest

from course_utils import CourseError, check, launch, pictures  # noqa: F401
from tests.files import ROOT
from tests.tables import rows

BLAME = r"(?i)\b(invalid|illegal|bad|wrong|sorry|please|oops|unfortunately)\b"
MISTAKES = """
mistake                            what it is   what to do
launch(print(), ranks=2)           None         launch(train, 10)
launch(print, ranks=0)             ranks=0      1 to 64
launch(print, device="gpu")        gpu          cpu
launch(print, live=True)           live=True    LivePlot("loss")
pictures.collective("all_gather")  all_gather   all-gather
check.shared_some                  shared_some  shared_sum
"""


@pytest.mark.parametrize(("mistake", "value", "todo"), rows(MISTAKES))
def test_it_says_what_it_got_and_what_to_do_in_few_words(mistake, value, todo):
    with pytest.raises(CourseError) as caught:
        eval(mistake)
    text = str(caught.value)
    assert value in text
    assert todo in text
    assert 20 <= len(text) <= 400


def test_no_error_blames():
    for file in ROOT.glob("course_utils/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise):
                texts = [
                    str(part.value) for part in ast.walk(node) if isinstance(part, ast.Constant)
                ]
                assert not re.search(BLAME, " ".join(texts)), f"{file}, line {node.lineno}"
