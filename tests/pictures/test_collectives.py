"""Collectives step by step: what they end with, and what each rank sends and holds on the way."""

import itertools
import math

from course_utils import pictures
from course_utils.pictures.collectives import NAMES, steps


def test_each_collective_ends_with_what_it_is_for_in_as_few_steps_and_bytes():
    for p in range(2, 9):
        everyone = set(range(p))
        wanted = {
            "broadcast": (math.ceil(math.log2(p)), [[{0}]] * p),
            "all-gather": (p - 1, [[{c} for c in range(p)]] * p),
            "reduce-scatter": (
                p - 1,
                [[everyone if c == r else set() for c in range(p)] for r in range(p)],
            ),
            "all-reduce": (2 * (p - 1), [[everyone] * p] * p),
        }
        for name, (count, held) in wanted.items():
            _, *found = steps(name, p)
            assert (found[-1].held, len(found)) == (held, count), (name, p)
            # each step a p-th of the message: 2(p - 1)/p of it for an all-reduce
            if name != "broadcast":
                assert all({send.src for send in step.sends} == everyone for step in found)


def test_a_step_is_one_chunk_out_and_one_in_and_nobody_sends_what_it_has_not():
    for name, p in itertools.product(NAMES, range(2, 9)):
        before, *found = steps(name, p)
        for step in found:
            assert (
                len({s.src for s in step.sends})
                == len(step.sends)
                == len({s.dst for s in step.sends})
            )
            for send in step.sends:
                assert before.held[send.src][send.chunk]
                if "reduce" in name and not step.text.startswith("All-gather"):
                    assert (
                        not before.held[send.src][send.chunk] & before.held[send.dst][send.chunk]
                    ), "added twice"
            before = step
        page = pictures.collective(name, p)
        # the first one is there without JavaScript, too
        assert page.html.count("svg xmlns") == len(found) + 2
        assert page.alt.startswith(f"{name} on {p} ranks: {len(found)} steps; ")
        assert len(page.html) < 200_000
