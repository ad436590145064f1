"""Exercises of the notebook on `nn.DataParallel`: scatter and gather, as it needs them."""

from __future__ import annotations

from typing import Any

import torch

from .old import exercise, expect, wrong
from .old_compare import kind


def scatter(batch, devices):
    """One part of `batch` for each device that gets one: tensors by rows, tuples and dicts by value, the rest as is."""
    if isinstance(batch, torch.Tensor):
        return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]
    if isinstance(batch, dict):
        return [dict(zip(batch, values, strict=True)) for values in scatter(tuple(batch.values()), devices)]
    if isinstance(batch, tuple):
        return list(zip(*(scatter(value, devices) for value in batch), strict=False))
    return [batch] * len(devices)


@exercise(
    scatter,
    "A tensor: `batch.chunk(len(devices))`, then `.to(device)` for each part. `zip` stops at the shorter list.",
    "A tuple or a dict: scatter every value first, with scatter itself; then build one tuple or dict for each part.",
    "A number or a text has no rows: every device gets it, `[batch] * len(devices)`.",
)
def _scatter(answer):
    cpu = [torch.device("cpu")] * 4
    for words, batch, devices in (
        ("a tensor of 10 rows, 4 devices", _x(10), cpu),
        ("a tensor of 5 rows, 4 devices", _x(5), cpu),
        ("a tensor of 10 labels, 3 devices", torch.arange(10), cpu[:3]),
        ("a tensor of 7 images, 2 devices", torch.arange(84.0).reshape(7, 3, 4), cpu[:2]),
        ('a tensor, ["cpu", "meta"]', _x(10), ["cpu", "meta"]),
        ("0.5, 2 devices", 0.5, cpu[:2]),
        ('"digits", 4 devices', "digits", cpu),
        ("None, 3 devices", None, cpu[:3]),
        ("a list of 3 numbers, 2 devices", [1, 2, 3], cpu[:2]),
        ("{'x', 'y', 'scale': 0.5, 'name'}, 2 devices", _batch(10), cpu[:2]),
        ("{'scale': 0.5, 'x': 5 rows}, 4 devices", {"scale": 0.5, "x": _x(5)}, cpu),
        ("(images, labels), 2 devices", (_x(10), torch.arange(10)), cpu[:2]),
        ("(images, {'y': labels, 'on': True}, 7), 3 devices", (_x(9), {"y": torch.arange(9), "on": True}, 7), cpu[:3]),
        ('a dict, ["cpu", "meta"]', _batch(6), ["cpu", "meta"]),
    ):
        wanted, before = scatter(batch, devices), _frozen(batch)
        parts = answer(batch, devices)
        call = f"scatter({words})"
        if not isinstance(parts, (list, tuple)):
            expect(call, wanted, parts)
        if len(parts) != len(wanted):
            wrong(f"{call}: the number of parts.", expected=f"{len(wanted)} parts", got=f"{len(parts)} parts")
        for i, (right, part) in enumerate(zip(wanted, parts, strict=True)):
            _same(call, f"part {i}", right, part)
        if _frozen(batch) != before:
            wrong(f"{call}: the batch that was given changed. Build the parts as new objects.")
    weight = torch.ones(4, requires_grad=True)
    if not all(part["w"].requires_grad for part in answer({"w": weight}, cpu[:2])):
        wrong("The parts must keep their history, or no gradient comes back to the batch.",
              expected="requires_grad=True", got="requires_grad=False")
    return "Tensors by rows, tuples and dicts value by value, everything else to every device."


def gather(outputs, device):
    """The replicas' outputs as one, on `device`: rows below each other, dicts by key, single numbers as a vector."""
    if isinstance(outputs[0], dict):
        return {key: gather([output[key] for output in outputs], device) for key in outputs[0]}
    return torch.cat([torch.atleast_1d(output.to(device)) for output in outputs])


@exercise(
    gather,
    "`torch.cat` puts rows below each other, in the replicas' order; its inputs must be on one device.",
    "A loss has no dimension, and `torch.cat` refuses it: `torch.atleast_1d` makes it a vector of one.",
    "A dict: gather the values of each key with gather itself. The keys are those of `outputs[0]`.",
)
def _gather(answer):
    rows = list(_x(10).chunk(4))
    losses = [torch.tensor(1.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)]
    for words, outputs, device in (
        ("parts of 3, 3, 3 and 1 rows", rows, "cpu"),
        ('parts on the CPU, "meta"', rows, "meta"),
        ("one part", rows[:1], "cpu"),
        ("vectors of 4, 4 and 2 numbers", list(torch.arange(10.0).split(4)), "cpu"),
        ("labels, int64", list(torch.arange(10).chunk(2)), "cpu"),
        ("parts of shape (2, 3, 4) and (1, 3, 4)", list(torch.arange(36.0).reshape(3, 3, 4).split(2)), "cpu"),
        ("two losses without a dimension", losses, "cpu"),
        ("dicts of rows and losses", [{"scores": part, "penalty": part.mean()} for part in rows[:3]], "cpu"),
        ('dicts, "meta"', [{"out": part} for part in rows], "meta"),
    ):
        wanted, before = gather(outputs, device), _frozen(outputs)
        got = answer(list(outputs), device)
        _same(f"gather({words})", "the result", wanted, got)
        if _frozen(outputs) != before:
            wrong(f"gather({words}): the outputs that were given changed. Leave them as they are.")
    joined = answer(list(losses), "cpu")
    if not joined.requires_grad:
        wrong("The result must keep its history, or `backward()` never reaches the replicas.",
              expected="requires_grad=True", got="requires_grad=False")
    joined.mean().backward()
    expect("the gradient that reaches each replica's loss", [0.5, 0.5], [loss.grad.item() for loss in losses])
    return "A loss for each replica comes back as a vector: take its mean before `backward()`."


def _x(rows: int) -> torch.Tensor:
    return torch.arange(2.0 * rows).reshape(rows, 2)


def _batch(rows: int) -> dict[str, Any]:
    return {"x": _x(rows), "y": torch.arange(rows), "scale": 0.5, "name": "digits"}


def _same(call: str, place: str, wanted: Any, got: Any) -> None:
    """End the check in words unless the two are the same, containers and their types included."""
    if isinstance(wanted, torch.Tensor):
        _same_tensor(call, place, wanted, got)
        return
    if isinstance(wanted, (dict, tuple, list)) and not isinstance(got, type(wanted)):
        if got is None:
            expect(f"{call}: {place}", wanted, got)
        wrong(f"{call}: {place} is something else.", expected=kind(wanted), got=kind(got))
    if isinstance(wanted, dict):
        if set(wanted) != set(got):
            wrong(f"{call}: {place} has other keys.", expected=", ".join(wanted), got=", ".join(map(str, got)))
        for key, value in wanted.items():
            _same(call, f"{place}[{key!r}]", value, got[key])
    elif isinstance(wanted, tuple):
        if len(wanted) != len(got):
            wrong(f"{call}: {place} has another length.", expected=str(len(wanted)), got=str(len(got)))
        for i, (value, its) in enumerate(zip(wanted, got, strict=True)):
            _same(call, f"{place}[{i}]", value, its)
    elif wanted is None and got is not None:
        wrong(f"{call}: {place} is something else.", expected="None", got=kind(got))
    elif wanted is not None:
        expect(f"{call}: {place}", wanted, got)


def _same_tensor(call: str, place: str, wanted: torch.Tensor, got: Any) -> None:
    if isinstance(got, torch.Tensor):
        if got.device.type != wanted.device.type:
            wrong(f"{call}: {place} is on the wrong device.", expected=f"on {wanted.device}", got=f"on {got.device}")
        if got.shape == wanted.shape and (wanted.is_meta or torch.equal(wanted, got)) and got.dtype == wanted.dtype:
            return
        if got.shape == wanted.shape and got.dtype != wanted.dtype:
            wrong(f"{call}: {place} has another type.", expected=str(wanted.dtype), got=str(got.dtype))
        if got.shape == wanted.shape and torch.equal(wanted.flatten().sort()[0], got.flatten().sort()[0]):
            wrong(f"{call}: {place} has all its numbers, in another order.",
                  expected=str(wanted.tolist()), got=str(got.tolist()))
    expect(f"{call}: {place}", wanted, got)


def _frozen(value: Any) -> Any:
    """A value as text and numbers, to see later whether it was changed."""
    if isinstance(value, torch.Tensor):
        return str(value.device), None if value.is_meta else value.tolist(), value.requires_grad
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return type(value), [_frozen(inner) for inner in value] if isinstance(value, (list, tuple)) else value
