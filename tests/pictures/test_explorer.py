"""The explorer: its JavaScript and the Python schedules give the same instructions, times, boxes and words."""

import itertools
import json
import re
import shutil
import subprocess

import pytest

from course_utils import CourseError, pictures
from course_utils.pictures.explorer import _frame, _says
from course_utils.pictures.scripts import source
from course_utils.theory import schedules
from course_utils.theory.messages import letter

CASES = [
    (name, p, m, v, ratio, link)
    for (name, v), p, m, (ratio, link) in itertools.product(
        [("naive", 1), ("GPipe", 1), ("1F1B", 1), ("zero-bubble", 1), *(("interleaved", v) for v in (1, 2, 3))],
        [1, 2, 3, 4, 8],
        [1, 3, 8, 10, 16],
        [(1, 0), (2, 0), (1.5, 0.4)],
    )
    if name != "interleaved" or (p > 1 and m % schedules.rounds(p, m) == 0)
]

JS = """
const cases = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(cases.map(([name, p, m, v, ratio, link]) => {
  const all = pipeline.orders(name, p, m, v);
  const spans = pipeline.simulate(all, p, v, 1, ratio, link), held = pipeline.held(all, v);
  const frame = picture.frame(spans, p), says = picture.says(spans, held, p, m, v, name);
  return {all, spans, held, frame, says};
})));
"""


@pytest.fixture(scope="module")
def javascript():
    if not (node := shutil.which("node")):
        pytest.skip("node is not installed: the JavaScript was not run")
    done = subprocess.run(
        [node, "-e", source("schedules.js", "pipeline.js") + JS],
        input=json.dumps(CASES), capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


def made(case):
    name, p, m, v, _, _ = case
    return schedules.make(name, ranks=p, micro_batches=m, chunks=v)


def test_same_instructions_and_activations_held(javascript):
    for case, found in javascript.items():
        schedule = made(case)
        ours = [[[step.letter, step.stage, step.micro] for step in order] for order in schedule.orders]
        assert found["all"] == ours, case
        assert found["held"] == pytest.approx(schedule.held), case


def test_same_times(javascript):
    def key(span):
        return span[:4]

    for case, found in javascript.items():
        ratio, link = case[4:]
        ours = []
        for s in made(case).simulate(forward=1.0, backward=float(ratio), link=float(link)).spans:
            words = s.name.split()
            if s.lane == "compute":
                ours.append([s.rank, letter(s.name), int(words[-1]), int(words[1]), s.start, s.end])
        theirs = sorted((s for s in found["spans"] if s[1] != "S"), key=key)
        ours.sort(key=key)
        assert [key(s) for s in theirs] == [key(s) for s in ours], case
        assert [t for s in theirs for t in s[4:]] == pytest.approx([t for s in ours for t in s[4:]]), case


def words_and_numbers(page):
    """The page without its widths, and these; exact halves are rounded one way here and another way there."""
    number = re.compile(r"\d+\.\d{4}")
    return number.sub("", page), [float(n) for n in number.findall(page)]


def test_same_picture_and_words_at_the_start(javascript):
    for case, found in javascript.items():
        if case[4:] == (2, 0) and case[3] in (1, 2):
            (theirs, their_numbers), (ours, numbers) = map(words_and_numbers, (found["frame"], _frame(made(case))))
            assert theirs == ours, case
            assert their_numbers == pytest.approx(numbers, abs=2e-4), case
            assert found["says"] == _says(made(case)), case


def test_the_first_picture():
    page = pictures.explorer()
    assert "All ranks are busy at t = 1, 2, 6, 7, 8, 9." in page.alt
    assert "(p − 1)/(m + p − 1) = 1/4" in page.alt  # noqa: RUF001
    assert page.html.count("http") == 0
    assert 'role="group"' in page.html


def test_the_same_numbers_are_refused():
    if not (node := shutil.which("node")):
        pytest.skip("node is not installed: the JavaScript was not run")
    asked = list(itertools.product(schedules.SCHEDULES, [1, 2, 3, 4, 8], range(1, 17)))
    done = subprocess.run(
        [node, "-e", source("schedules.js") + f"console.log(JSON.stringify({json.dumps(asked)}.map("
         "([name, p, m]) => pipeline.wrong(name, p, m, 1))))"],
        capture_output=True, text=True, timeout=60,
    )
    for (name, p, m), said in zip(asked, json.loads(done.stdout), strict=True):
        if said:
            with pytest.raises(CourseError, match=re.escape(said[-8:])):  # the number to take
                schedules.make(name, ranks=p, micro_batches=m)
        else:
            schedules.make(name, ranks=p, micro_batches=m)


def test_a_start_beyond_the_sliders_widens_them():
    page = pictures.explorer("1F1B", ranks=12, micro_batches=24).html
    assert '"ranks (p)", 1, 12' in page
    assert '"micro-batches (m)", 1, 24' in page
