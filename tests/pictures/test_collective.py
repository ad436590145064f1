"""Collectives and split products step by step: what they end with, and what each rank sends and holds on the way."""

import itertools
import json
import math
import re

import torch

from course_utils import pictures
from course_utils.pictures.collective import NAMES, steps
from course_utils.pictures.matmul import A, X


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
            if (
                name != "broadcast"
            ):  # each step a p-th of the message: 2(p - 1)/p of it for an all-reduce
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
        assert (
            page.html.count("svg xmlns") == len(found) + 2
        )  # the first one is there without JavaScript, too
        assert page.alt.startswith(f"{name} on {p} ranks: {len(found)} steps; ")
        assert len(page.html) < 200_000


def test_split_products_agree_with_torch():
    answer = (torch.tensor(X) @ torch.tensor(A)).flatten()
    for split, ranks in itertools.product(("column", "row"), (1, 2, 4)):
        frames = json.loads(
            re.search(r'json">(.*?)</script>', pictures.matmul(split, ranks).html)[1]
        )["frames"]
        found = [re.findall(r"text-align:center;[^>]*>(\d*)<", frame) for frame in frames]
        cells = torch.tensor([[int(n or -1) for n in numbers] for numbers in found])
        start, computed, whole = cells.reshape(
            3, ranks, 32
        )  # a rank's 8 numbers of x, 16 of A and 8 of y
        there = computed[:, 24:] >= 0
        assert torch.equal((computed[:, 24:] * there).sum(0), answer)
        assert there.sum(1).eq(8 // ranks if split == "column" else 8).all(), (
            "finished, or parts of a sum"
        )
        assert whole[:, 24:].eq(answer).all()
        assert start[:, 24:].eq(-1).all()
        assert (start[:, 8:24] >= 0).sum(0).eq(1).all(), "every number of A lies on one rank"
