"""Exercises of notebook 03: what each replica sees, and scatter and gather as `nn.DataParallel` needs them."""

from __future__ import annotations

import torch

from .exercise import exercise, expect, wrong


def replica_shapes(rows, devices):
    """For LinearRegression(2, 5) and x of shape (rows, 2): one (input shape, output shape) for each replica at work."""
    parts = torch.empty(rows, 2).chunk(devices)
    return [((len(part), 2), (len(part), 5)) for part in parts]


@exercise(
    replica_shapes,
    "Only the first dimension is cut: a replica sees all 2 inputs of its rows and gives 5 outputs for each.",
    "`chunk` gives every part the same number of rows, rounded up; the last part has what is left.",
    "5 rows on 4 devices: parts of 2, 2 and 1 rows. Nothing is left for the fourth device, and it gets no replica.",
)
def _replica_shapes(answer):
    for rows, devices in ((30, 2), (30, 4), (5, 4), (1, 8)):
        got = answer(rows, devices)
        expect(f"replica_shapes({rows}, {devices})", _plain(replica_shapes(rows, devices)), _plain(got))
    return "5 rows keep only 3 of 4 devices busy: a batch should be much larger than the number of devices."


def scatter(batch, devices):
    """One part of `batch` for each device, on that device: tensors by rows, dicts by value, the rest as it is."""
    if isinstance(batch, torch.Tensor):
        parts = batch.chunk(len(devices))
        return [part.to(device) for part, device in zip(parts, devices, strict=False)]
    if isinstance(batch, dict):
        parts = {key: scatter(value, devices) for key, value in batch.items()}
        return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=False)]
    return [batch] * len(devices)


@exercise(
    scatter,
    "A tensor: `batch.chunk(len(devices))`, then `.to(device)` for each part. `zip` stops at the shorter list.",
    "A dict: scatter every value first, with scatter itself; then build one dict for each device.",
    "A number or a string has no rows: every device gets it, `[batch] * len(devices)`.",
)
def _scatter(answer):
    cpu = [torch.device("cpu")] * 4
    x = torch.arange(20.0).reshape(10, 2)
    expect("scatter(10 rows, 4 devices)", list(x.chunk(4)), answer(x, cpu))
    expect("scatter(5 rows, 4 devices): parts", 3, len(answer(x[:5], cpu)))
    there = [str(part.device) for part in answer(x, ["cpu", "meta"])]
    expect('scatter(x, ["cpu", "meta"]): where the parts are', ["cpu", "meta"], there)
    weight = torch.ones(4, requires_grad=True)
    if not all(part.requires_grad for part in answer(weight, cpu[:2])):
        wrong(
            "The parts must keep their history, or no gradient comes back to the batch.", expected="requires_grad=True"
        )
    y = torch.arange(10)
    parts = answer({"x": x, "y": y, "scale": 0.5}, cpu[:2])
    wanted = [{"x": x[:5], "y": y[:5], "scale": 0.5}, {"x": x[5:], "y": y[5:], "scale": 0.5}]
    expect("scatter({'x': …, 'y': …, 'scale': 0.5}, 2 devices)", wanted, parts)
    expect("scatter({'x': 5 rows, 'scale': 0.5}, 4 devices): parts", 3, len(answer({"x": x[:5], "scale": 0.5}, cpu)))
    return "Tensors, dicts of tensors and everything else: what torch's own scatter does."


def gather(outputs, device):
    """The replicas' outputs as one, on `device`: rows below each other, dicts by key, single numbers as a vector."""
    if isinstance(outputs[0], dict):
        return {key: gather([output[key] for output in outputs], device) for key in outputs[0]}
    return torch.cat([output.reshape(1) if output.dim() == 0 else output for output in outputs]).to(device)


@exercise(
    gather,
    "`torch.cat` puts rows below each other, in the replicas' order; its inputs must be on one device.",
    "A loss has no dimension, and `torch.cat` refuses it: `output.reshape(1)` makes it a vector of one.",
    "A dict: gather the values of each key with gather itself. The keys are those of `outputs[0]`.",
)
def _gather(answer):
    parts = list(torch.arange(20.0).reshape(10, 2).chunk(4))
    expect("gather(parts of 3, 3, 3 and 1 rows)", torch.cat(parts), answer(list(parts), "cpu"))
    expect('gather(…, "meta"): where it is', "meta", str(answer(list(parts), "meta").device))
    losses = [torch.tensor(1.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)]
    joined = answer(list(losses), "cpu")
    expect("gather of two losses without a dimension", torch.tensor([1.0, 3.0]), joined)
    if not joined.requires_grad:
        wrong("The result must keep its history, or `backward()` never reaches the replicas.", expected="a grad_fn")
    joined.mean().backward()
    expect("the gradient that reaches each replica's loss", [0.5, 0.5], [loss.grad.item() for loss in losses])
    dicts = [{"logits": part, "loss": part.mean()} for part in parts[:2]]
    wanted = {"logits": torch.cat(parts[:2]), "loss": torch.stack([part.mean() for part in parts[:2]])}
    expect("gather of dicts", wanted, answer(dicts, "cpu"))
    return "A loss for each replica comes back as a vector: take its mean before `backward()`."


def _plain(shapes):
    """Shapes as tuples, whatever they came as: torch.Size, lists."""
    return tuple(_plain(shape) for shape in shapes) if isinstance(shapes, (list, tuple)) else shapes
