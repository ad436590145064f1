"""Exercises of notebook 01: three device bugs, a nested batch, and whether two tensors share their memory."""

from __future__ import annotations

import torch

from .exercise import exercise, expect, wrong


def scores(x, device):
    """The score of each row of x (N, 4), computed on `device`: (N,)."""

    class Centre(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("middle", torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, x):
            return x - self.middle

    x = x.to(device)
    weights = torch.linspace(0, 1, 4, device=device)
    return Centre().to(device)(x) @ weights


@exercise(
    scores,
    "`x.to(device)` leaves x where it is and returns a new tensor: who keeps it?",
    "A tensor made without `device=` is made on the CPU.",
    "`module.to(device)` moves parameters and buffers. A plain tensor attribute stays behind; `register_buffer` helps.",
)
def _scores(answer):
    x = torch.arange(12.0).reshape(3, 4)
    right = scores(x, "cpu")
    expect('scores(x, "cpu")', right, answer(x, "cpu"), tol=1e-5)
    second = torch.accelerator.current_accelerator(check_available=True)
    for device in ["meta"] + ([str(second)] if second else []):
        got = answer(x.clone(), device)
        if not isinstance(got, torch.Tensor) or got.device.type != torch.device(device).type:
            wrong(f'scores(x, "{device}"): compute it on that device.', expected=f"a tensor on {device}", got=got)
        if got.shape != (3,):
            wrong(f'scores(x, "{device}"): a score for each row.', expected="3 scores", got=got)
        if device != "meta":
            expect(f'scores(x, "{device}")', right, got.cpu(), tol=1e-4)
    return "It runs on any device: the input, the constant and the buffer move together."


def move(batch, device):
    """A batch with every tensor in it on `device`; lists, tuples and dicts keep their shape, the rest stays."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


@exercise(
    move,
    "Ask what the batch is: a tensor moves, a container is taken apart, anything else is returned as it came.",
    "A container inside a container: let `move` call itself for each value.",
    "`type(batch)(...)` builds a list from a list and a tuple from a tuple.",
)
def _move(answer):
    x, y = torch.ones(2, 3), torch.tensor([1, 0])
    batch = {"x": x, "pair": (x, y), "more": [{"y": y}, "cat", 7, None], "names": ["a", "b"]}
    got = answer(batch, "meta")
    found, wanted = list(_leaves(got)), list(_leaves(move(batch, "meta")))
    for (place, value), (expected_place, expected) in zip(found, wanted, strict=False):
        if place != expected_place:
            wrong("The batch changed its shape.", expected=f"batch{expected_place}", got=f"batch{place}")
        if isinstance(expected, torch.Tensor) and isinstance(value, torch.Tensor):
            if value.device != expected.device:
                wrong(f"batch{place} was not moved.", expected="on meta", got=f"on {value.device}")
        elif type(value) is not type(expected):
            wrong(f"batch{place} is something else now.", expected=_kind(expected), got=_kind(value))
        elif not isinstance(expected, (dict, list, tuple)):
            expect(f"batch{place}", expected, value)
    if len(found) != len(wanted):
        wrong("The batch changed its shape.", expected=f"{len(wanted)} values", got=f"{len(found)} values")
    if batch["x"].device.type != "cpu" or batch["more"][0]["y"].device.type != "cpu":
        wrong("The batch that was given changed: build a new one.", expected="batch['x'] on cpu", got="it was moved")
    if answer({"x": x}, "cpu")["x"] is not x:
        wrong("A tensor that is there already needs no copy.", expected="the same tensor", got="a copy")
    return "Tensors move, the shape of the batch stays."


def _leaves(value, place=""):
    """(place, value) of all that is in a nested batch, containers included."""
    yield place, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{i}]")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def shares_memory(a, b):
    """Do two tensors use the same memory, so that writing to one can change the other?"""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@exercise(
    shares_memory,
    "Two views of one tensor can begin at different elements: compare where their storage begins, not they themselves.",
    "`tensor.untyped_storage()` is the memory below a tensor, and it has a `data_ptr()`.",
)
def _shares_memory(answer):
    x = torch.arange(6.0)
    pairs = [
        ("x and x.clone()", x, x.clone(), False),
        ("x and x.view(2, 3)", x, x.view(2, 3), True),
        ("x and x[2:]", x, x[2:], True),
        ("x and x.reshape(2, 3).T", x, x.reshape(2, 3).T, True),
        ("x and x.to(torch.float64)", x, x.to(torch.float64), False),
        ('x and x.to("cpu")', x, x.to("cpu"), True),
        ("x and torch.from_numpy(x.numpy())", x, torch.from_numpy(x.numpy()), True),
        ("two tensors of zeros", torch.zeros(6), torch.zeros(6), False),
    ]
    for words, a, b, shared in pairs:
        expect(words, shared, answer(a, b))
    return "Eight pairs: views share, copies do not, and `.to` copies only when it has to."
