"""Time a queue, mend device bugs, move a batch: right answers in other styles pass, wrong ones fail in true words."""

import copy
import time

import numpy
import pytest
import torch

from course_utils import check
from tests.checks.judging import judge


@pytest.mark.parametrize("name", ["seconds", "scores", "move"])
def test_published(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


# -- seconds ----------------------------------------------------------------------------------------------------------


def each_by_itself(work, wait, clock):
    work()
    wait()
    times = []
    for _ in range(10):
        start = clock()
        work()
        wait()
        times.append(clock() - start)
    return sum(times) / len(times)


def waits_twice(work, wait, clock):
    wait()
    work()
    wait()
    wait()
    t0 = clock()
    [work() for _ in range(10)]
    wait()
    t1 = clock()
    return numpy.float32(t1 - t0) / 10


def in_numpy(work, wait, clock):
    def lap(count):
        start = clock()
        for _ in range(count):
            work()
        wait()
        return clock() - start

    lap(1)
    return numpy.mean([lap(1) for _ in range(10)])


def as_tensor(work, wait, clock):
    for i in range(11):
        if i == 1:
            wait()
            began = clock()
        work()
    wait()
    return torch.tensor(clock() - began) / 10


@pytest.mark.parametrize("answer", [each_by_itself, waits_twice, in_numpy, as_tensor])
def test_seconds_in_other_styles(answer):
    assert check.seconds(answer), str(check.seconds(answer))


def timed(*, warm=1, wait_warm=True, count=10, wait_end=True, divide=10, scale=1.0, own_clock=False):
    def seconds(work, wait, clock):
        clock = time.perf_counter if own_clock else clock
        for _ in range(warm):
            work()
        if wait_warm:
            wait()
        began = clock()
        for _ in range(count):
            work()
        if wait_end:
            wait()
        return scale * (clock() - began) / divide

    return seconds


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (timed(wait_end=False), "while work was still in the queue"),
        (timed(warm=0), "which is to warm up, was timed"),
        (timed(warm=0, wait_warm=False), "which is to warm up, was timed"),
        (timed(wait_warm=False), "started while earlier work was still in the queue"),
        (timed(divide=1), "10 times the mean"),
        (timed(divide=11), "0.909 times the mean"),
        (timed(scale=1000), "these are milliseconds"),
        (timed(count=1), "1 calls of work() lie between"),
        (timed(own_clock=True), "Use the `clock` that is given"),
        (lambda work, wait, clock: (work(), wait(), clock(), clock() - clock())[3], "times the mean"),
        (lambda work, wait, clock: "fast", "give one number"),
    ],
)
def test_seconds_wrong(answer, says):
    verdict = check.seconds(answer)
    assert verdict.state == "wrong"
    if says != "times the mean":
        assert says in str(verdict), str(verdict)


# -- scores -----------------------------------------------------------------------------------------------------------

MIDDLE = [1.0, 2.0, 3.0, 4.0]


class Left(torch.nn.Module):
    """The bug of the notebook: a plain attribute."""

    def __init__(self):
        super().__init__()
        self.middle = torch.tensor(MIDDLE)

    def forward(self, x):
        return x - self.middle


class Follows(Left):
    def forward(self, x):
        return x - self.middle.to(x.device)


class Parameter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.middle = torch.nn.Parameter(torch.tensor(MIDDLE), requires_grad=False)

    def forward(self, x):
        return x.sub(self.middle)


def weights(device):
    return torch.linspace(0, 1, 4, device=device)


def with_block(x, device):
    with torch.device(device):
        return (x.to(device) - torch.tensor(MIDDLE)) @ torch.linspace(0, 1, 4)


RIGHT_SCORES = [
    lambda x, device: Follows().to(device)(x.to(device)) @ torch.linspace(0, 1, 4).to(device),
    lambda x, device: Parameter().to(device=device)(x.to(device)).matmul(weights(device)),
    lambda x, device: torch.einsum("nd,d->n", x.to(device) - torch.tensor(MIDDLE, device=device), weights(device)),
    lambda x, device: ((x.to(device) - torch.arange(1.0, 5.0, device=device)) * weights(device)).sum(dim=1),
    with_block,
]


@pytest.mark.parametrize("answer", RIGHT_SCORES)
def test_scores_in_other_styles(answer):
    assert check.scores(answer), str(check.scores(answer))


def in_place(x, device):
    x -= torch.tensor(MIDDLE)
    return x.to(device) @ weights(device)


def sets_the_default(x, device):
    torch.set_default_device(device)
    return Left()(x.to(device)) @ torch.linspace(0, 1, 4)


def as_given(x, device):
    x.to(device)
    return Left().to(device)(x) @ torch.linspace(0, 1, 4)


def only_for_meta(x, device):
    return torch.empty(len(x), device="meta") if device == "meta" else as_given(x, device)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (as_given, "compute it on that device"),
        (lambda x, device: Left().to(device)(x.to(device)) @ weights(device), "It raised RuntimeError"),
        (lambda x, device: check.scores.published(x, "cpu"), "compute it on that device"),
        (lambda x, device: check.scores.published(x, "cpu").to(device), "it was not computed there"),
        (lambda x, device: Left()(x).to(device) @ weights(device), "it was not computed there"),
        (lambda x, device: torch.tensor([-2.0, 6.0, 14.0], device=device), "a score for each row"),
        (lambda x, device: x.to(device) @ weights(device), "off by"),
        (lambda x, device: x.to(device).cpu() @ weights("cpu"), 'for x of shape (3, 4)'),
        (only_for_meta, "it was not computed there"),
        (in_place, "the x that was given changed"),
        (sets_the_default, "torch's default device is another one afterwards"),
        (lambda x, device: check.scores.published(x, device).sum(), "a score for each row"),
    ],
)
def test_scores_wrong(answer, says):
    judge("scores", answer, says)
    assert torch.zeros(1).device.type == "cpu"


def test_scores_that_fetches():
    def answer(x, device):
        x = x.to(device)
        return Follows()(x.cpu()).to(device) @ weights(device)

    verdict = check.scores(answer)
    assert verdict.state == "wrong"
    assert "something is fetched from the device" in verdict.text


def test_scores_names_the_line():
    verdict = check.scores(lambda x, device: Left().to(device)(x.to(device)) @ weights(device))
    assert "in forward" in verdict.line
    assert "return x - self.middle" in verdict.line


# -- move -------------------------------------------------------------------------------------------------------------


def mover(tensor=lambda t, device: t.to(device), keep=type, other=lambda value: value):
    def move(batch, device):
        if torch.is_tensor(batch):
            return tensor(batch, device)
        if isinstance(batch, dict):
            return {key: move(value, device) for key, value in batch.items()}
        return keep(batch)([move(v, device) for v in batch]) if isinstance(batch, (list, tuple)) else other(batch)

    return move


def of_a_copy(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.clone().to(device)
    batch = copy.copy(batch)
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = of_a_copy(batch[key], device)
    elif isinstance(batch, list):
        batch[:] = [of_a_copy(value, device) for value in batch]
    elif isinstance(batch, tuple):
        batch = tuple(of_a_copy(value, device) for value in batch)
    return batch


def with_match(batch, device):
    match batch:
        case torch.Tensor():
            return batch.to(device=device, non_blocking=True)
        case dict():
            return dict(zip(batch, with_match(list(batch.values()), device), strict=True))
        case list():
            return [*(with_match(value, device) for value in batch)]
        case tuple():
            return tuple(with_match(list(batch), device))
    return batch


def by_tree(batch, device):
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf, batch)


@pytest.mark.parametrize("answer", [mover(), mover(lambda t, d: t.to(d, copy=True)), of_a_copy, with_match, by_tree])
def test_move_in_other_styles(answer):
    assert check.move(answer), str(check.move(answer))


def in_the_batch(batch, device):
    items = batch.items() if isinstance(batch, dict) else enumerate(batch) if isinstance(batch, list) else ()
    for key, value in list(items):
        batch[key] = in_the_batch(value, device)
    if isinstance(batch, tuple):
        return tuple(in_the_batch(value, device) for value in batch)
    return batch.to(device) if torch.is_tensor(batch) else batch


def inner_lists_in_place(batch, device):
    if isinstance(batch, list):
        batch[:] = [inner_lists_in_place(value, device) for value in batch]
        return batch
    if isinstance(batch, (dict, tuple)):
        values = batch.values() if isinstance(batch, dict) else batch
        moved = [inner_lists_in_place(value, device) for value in values]
        return dict(zip(batch, moved, strict=True)) if isinstance(batch, dict) else tuple(moved)
    return batch.to(device) if torch.is_tensor(batch) else batch


def dicts_and_one_list(batch, device):
    found = {}
    for key, value in batch.items():
        if isinstance(value, (list, tuple)):
            found[key] = type(value)(v.to(device) if torch.is_tensor(v) else v for v in value)
        else:
            found[key] = value.to(device) if torch.is_tensor(value) else value
    return found


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda batch, device: batch.to(device), "'dict' object has no attribute 'to'"),
        (lambda batch, device: {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()},
         "batch['pair'][0] is on the wrong device"),
        (dicts_and_one_list, "batch['more'][0]['y'] is on the wrong device"),
        (mover(keep=lambda batch: list), "batch['pair'] is something else now"),
        (mover(keep=lambda batch: tuple), "batch['more'] is something else now"),
        (mover(lambda t, d: t.to(d).float()), "has another type"),
        (mover(lambda t, d: torch.zeros_like(t, device=d)), "off by"),
        (mover(lambda t, d: t), "batch['x'] is on the wrong device"),
        (mover(other=str), "batch['more'][2] is something else now"),
        (mover(other=lambda value: None), "is something else now"),
        (in_the_batch, "of the batch that was given changed"),
        (inner_lists_in_place, "batch['more'][0] of the batch that was given changed"),
    ],
)
def test_move_wrong(answer, says):
    judge("move", answer, says)


def test_move_a_namedtuple():
    from collections import namedtuple

    Pair = namedtuple("Pair", "x y")
    moved = check.move.published(Pair(torch.ones(2), "a"), "meta")
    assert (type(moved), moved.x.device.type, moved.y) == (Pair, "meta", "a")
