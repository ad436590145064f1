"""The explorer: its JavaScript and the Python schedules give the same instructions, times and
words.
"""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from course_utils import CourseError, pictures, schedules
from course_utils.pictures.pipeline_explorer import COLORS
from tests.python import run

NODE = shutil.which("node")


def source(*names):
    return "".join(Path(pictures.__file__).with_name(name).read_text() for name in names)


RUN = """
const document = {querySelectorAll: () => []};
%s
const answer = ([name, p, m, v, ratio, link]) => {
  if (wrong(name, p, m)) return null;
  const all = orders(name, p, m, v), spans = simulate(all, v, 1, ratio, link), most = held(all, v);
  const drawn = frame(spans, p, %s), said = says(spans, most, p, m, v, name);
  return {all, spans, held: most, frame: drawn, says: said};
};
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map(answer)));
"""


def javascript(cases):
    """What the page makes of (name, ranks, micro-batches, chunks, backward, link); None where it
    refuses.
    """
    script = RUN % (source("schedules.js", "pipeline_explorer.js"), json.dumps(COLORS))
    done = run(NODE, "-e", script, input=json.dumps(cases))
    return zip(cases, json.loads(done.stdout), strict=True)


def says(schedule, timeline):
    """How the page's sentence of a schedule begins."""
    held = ", ".join(f"{round(h, 2):g}" for h in schedule.held)
    waits = f"Ranks wait {100 * timeline.idle() + 1e-9:.1f} % of it"
    begin = f"One step takes {round(timeline.end, 2):g}. {waits}"
    return begin, f"Micro-batches whose activations a rank holds at the most: {held}. "


@pytest.mark.skipif(not NODE, reason="node is not installed: the JavaScript was not run")
def test_the_page_plays_the_same_schedules():
    kinds = [(name, 1) for name in schedules.SCHEDULES] + [("interleaved", 2), ("interleaved", 3)]
    ranks, micros, times = [1, 2, 3, 8], [1, 3, 8, 10], [(2, 0), (1.5, 0.4)]
    cases = [
        (name, p, m, v, *time)
        for (name, v), p, m, time in itertools.product(kinds, ranks, micros, times)
    ]
    for case, found in javascript(cases):
        name, p, m, v, backward, link = case
        if found is None:
            with pytest.raises(CourseError):
                schedules.make(name, ranks=p, micro_batches=m, chunks=v)
            continue

        schedule = schedules.make(name, ranks=p, micro_batches=m, chunks=v)
        steps = [[[s.letter, s.stage, s.micro] for s in order] for order in schedule.orders]
        assert found["all"] == steps, case
        assert found["held"] == pytest.approx(schedule.held), case

        timeline = schedule.simulate(backward=backward, link=link)
        where = {s.label: (s.letter, s.stage, s.micro) for order in schedule.orders for s in order}
        work = [s for s in timeline.spans if s.lane == "compute"]
        ours = sorted((s.rank, *where[s.name], s.start, s.end) for s in work)
        theirs = sorted(tuple(s) for s in found["spans"] if s[1] != "S")
        for their, our in zip(theirs, ours, strict=True):
            assert their[:4] == our[:4], case
            assert their[4:] == pytest.approx(our[4:]), case
        assert len(found["spans"]) == len(timeline.spans), case
        assert all(part in found["says"] for part in says(schedule, timeline)), case
        assert (found["frame"].count(">rank "), found["frame"].count("NaN")) == (p, 0), case
    ((_, classic),) = javascript([("GPipe", 2, 3, 1, 1, 0)])
    assert classic["says"] == (
        "One step takes 8. Ranks wait 25.0 % of it: "
        "(p \N{MINUS SIGN} 1)/(m + p \N{MINUS SIGN} 1) = 1/4. "
        "Micro-batches whose activations a rank holds at the most: 3, 3. All ranks are busy at t = "
        "1, 2, 5, 6."
    )


def test_without_javascript_it_is_a_picture_with_a_text():
    page = pictures.explorer()
    assert '<div data-stage><img src="data:image/png;base64,' in page.html
    assert page.alt.startswith("Pipeline explorer. ")
    assert "GPipe, 3 micro-batches on 2 ranks: 25.0% of the time is waiting" in page.alt
    assert f'role="group" aria-label="{page.alt}"' in page.html
    assert page.html.count("http") == 0
