"""Exercises of notebook 04: scatter and gather, as `nn.DataParallel` needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .compare import kinds
from .exercise import exercise


def scatter(batch, devices):
    """One part of `batch` for each device that gets one: tensors by rows, tuples and dicts by value, the rest as is."""
    if isinstance(batch, torch.Tensor):
        return [part.to(device) for part, device in zip(batch.chunk(len(devices)), devices, strict=False)]
    if isinstance(batch, dict):
        return [dict(zip(batch, values, strict=True)) for values in scatter(tuple(batch.values()), devices)]
    if isinstance(batch, tuple):
        return list(zip(*(scatter(value, devices) for value in batch), strict=False))
    return [batch] * len(devices)


def first_level(batch, devices):
    def of_one(value):
        return scatter(value, devices) if torch.is_tensor(value) else [value] * len(devices)

    if isinstance(batch, dict):
        return [dict(zip(batch, values, strict=True)) for values in first_level(tuple(batch.values()), devices)]
    return list(zip(*map(of_one, batch), strict=False)) if isinstance(batch, tuple) else of_one(batch)


def parts_alike(batch, devices):
    parts = batch.tensor_split(len(devices))
    return [part.to(device) for part, device in zip(parts, devices, strict=True)]


def rows_of(count: int) -> torch.Tensor:
    return torch.arange(2.0 * count).reshape(count, 2)


def batches() -> Iterator[tuple[str, Any, list]]:
    """(words, a batch, devices) for scatter."""
    x, y, cpu = rows_of(10), torch.arange(10), [torch.device("cpu")] * 4
    other = {"scale": 0.5, "name": "digits", "off": False, "none": None, "zero": 0, "empty": "", "list": [x, 1]}
    yield "a tensor of 10 rows, 4 devices", x, cpu
    yield "a tensor of 5 rows, 4 devices", rows_of(5), cpu
    yield "a tensor of 10 labels, 3 devices", y, cpu[:3]
    yield "a tensor of 7 images, 2 devices", torch.arange(84.0).reshape(7, 3, 4), cpu[:2]
    yield 'a tensor, ["cpu", "meta"]', x, ["cpu", "meta"]
    for words, value in (("0.5", 0.5), ("'digits'", "digits"), ("None", None), ("[labels, 1]", [y, 1])):
        yield f"{words}, 3 devices", value, cpu[:3]
    yield "{'scale': 0.5, 'x': 5 rows}, 4 devices", {"scale": 0.5, "x": rows_of(5)}, cpu
    yield "(0, labels, None), 1 device", (0, y, None), cpu[:1]
    yield "a dict with a number, a text, False, None and a list, 2 devices", {"x": x, **other}, cpu[:2]
    yield "(images, {'y': labels}, 7), 3 devices", (x, {"y": y}, 7), cpu[:3]
    yield "{'pair': (images, labels)}, 3 devices", {"pair": (x, y)}, cpu[:3]
    yield "{'inner': {'y': (labels,)}, 'x': images}, 4 devices", {"inner": {"y": (y,)}, "x": x}, cpu
    yield 'a dict, ["cpu", "meta"]', {"x": x, **other}, ["cpu", "meta"]


@exercise(scatter, tol=0, mistakes={
    "a tuple or a dict inside another one has to be cut, too: scatter can call itself for each value": first_level,
    "`tensor_split` makes parts of nearly the same size; `chunk` rounds up, and the last part is smaller": parts_alike,
})
def _(answer: Callable) -> Iterator[tuple]:
    for words, batch, devices in batches():
        given = list(devices)
        parts = answer(batch, given)
        parts = parts if parts is None else list(parts)
        yield f"scatter({words})", parts
        yield f"scatter({words}): what the parts consist of", kinds(parts)
        yield f"scatter({words}): the batch afterwards", batch
        yield f"scatter({words}): the devices afterwards", given
    v, w = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    parts = list(answer({"w": w, "pair": (v, 2)}, ["cpu"] * 2))
    yield "scatter of a dict with tensors that need a gradient", parts
    sum(i * part["w"].sum() + i * part["pair"][0].sum() for i, part in enumerate(parts, 1)).backward()
    yield "the gradients that come back to them", [w.grad, v.grad]
    yield "", "Tensors by rows, tuples and dicts value by value, everything else to every device."


def gather(outputs, device):
    """The replicas' outputs as one, on `device`: rows below each other, dicts by key, single numbers as a vector."""
    if isinstance(outputs[0], dict):
        return {key: gather([output[key] for output in outputs], device) for key in outputs[0]}
    return torch.cat([torch.atleast_1d(output.to(device)) for output in outputs])


def mean_of_losses(outputs, device):
    single = isinstance(outputs[0], torch.Tensor) and outputs[0].dim() == 0
    return torch.stack(outputs).mean().to(device) if single else gather(outputs, device)


@exercise(gather, tol=0, mistakes={
    "the mean of the losses, where a vector with one loss for each replica is asked for": mean_of_losses,
})
def _(answer: Callable) -> Iterator[tuple]:
    parts = list(rows_of(10).chunk(4))
    images, single = torch.arange(36.0).reshape(3, 3, 4).split(2), torch.ones(())
    for words, outputs, device in (
        ("parts of 3, 3, 3 and 1 rows", parts, "cpu"),
        ("one part", parts[:1], "cpu"),
        ('parts on the CPU, device "meta"', parts, "meta"),
        ('parts on "meta" and on the CPU, device "meta"', [parts[0].to("meta"), parts[1]], "meta"),
        ("vectors of 4, 4 and 2 numbers", list(torch.arange(10.0).split(4)), "cpu"),
        ("labels, int64", list(torch.arange(10).chunk(2)), "cpu"),
        ("parts of shape (2, 3, 4) and (1, 3, 4)", list(images), "cpu"),
        ("three losses without a dimension", [single, 2 * single, 3 * single], "cpu"),
        ("dicts of rows and losses", [{"scores": part, "loss": part.mean()} for part in parts[:3]], "cpu"),
        ("a dict in a dict", [{"all": {"out": part}, "n": single} for part in parts], torch.device("cpu")),
        ('dicts, device "meta"', [{"y": part} for part in parts], "meta"),
    ):
        found = answer(outputs, device)
        yield f"gather({words})", found
        yield f"gather({words}): what it consists of", kinds(found)
        yield f"gather({words}): the outputs afterwards", outputs
    leaves = [torch.ones(shape, requires_grad=True) for shape in ((), (), (2, 3), (1, 3), (2, 3), (1, 3))]
    loss, rows, inner = leaves[:2], leaves[2:4], [{"rows": leaf} for leaf in leaves[4:]]
    found = [answer(loss, "cpu"), answer(rows, "cpu"), answer(inner, "cpu")["rows"]]
    yield "gather of losses, rows and dicts that need a gradient", found
    sum(vector.mul(torch.arange(1.0, len(vector) + 1)[(...,) + (None,) * (vector.dim() - 1)]).sum()
        for vector in found).backward()
    yield "the gradients that come back to them", [leaf.grad for leaf in leaves]
    yield "", "A loss for each replica comes back as a vector: take its mean before `backward()`."
