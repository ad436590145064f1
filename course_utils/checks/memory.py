"""Exercises of the notebook on memory: predict the peak of a step, and a backward in pieces that fit."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..lessons.memory import Meter
from .old import exercise, expect, wrong


def predict_peak(widths, rows):
    """Bytes alive where the backward of a step begins: parameters, AdamW's states, kept outputs, two gradients."""
    parameters = sum(a * b + b for a, b in itertools.pairwise(widths))
    hidden = widths[1:-1]
    return 4 * (3 * parameters + rows * (sum(hidden) + 2 * hidden[-1]))


def network(widths: list[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def measured_peak(widths: list[int], rows: int) -> int:
    """What `predict_peak` is to predict: the second step's peak, when AdamW has its states."""
    model = network(widths)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(rows, widths[0]), torch.randint(widths[-1], (rows,))
    for _ in range(2):
        optimizer.zero_grad()
        with Meter(model, optimizer) as meter:
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return meter.peak


@exercise(
    predict_peak,
    "How many numbers does a linear layer from `a` to `b` have, with its bias? Each of them is there three times.",
    "`widths[1:-1]` are the hidden layers; each keeps `rows` times its width.",
    "Every number takes four bytes: 4 * (3 * parameters + rows * (sum of the hidden widths + 2 * the last of them)).",
)
def _predict_peak(answer):
    for widths, rows in (([64, 512, 512, 10], 1024), ([64, 256, 10], 2048), ([32, 300, 200, 400, 10], 1500)):
        real, got = measured_peak(widths, rows), answer(list(widths), rows)
        try:
            off = float(got) / real - 1
        except (TypeError, ValueError):
            wrong(f"predict_peak({widths}, {rows}): bytes are a number.", expected=f"about {real:,}", got=got)
        if not abs(off) <= 0.1:
            times = float(got) / real
            hint = " (bytes are asked for, not numbers?)" if 0.2 < times < 0.3 else ""
            wrong(f"predict_peak({widths}, {rows}) is {times:.2f} times what was measured{hint}.",
                  expected=f"{real:,} bytes, to a tenth", got=got)
    return "Within a tenth of three measured steps."


def backward_in_pieces(model, loss_of, x, y, most):
    """Gradients of the whole batch, `most` rows at a time; returns the loss of the whole batch."""
    total = 0.0
    for xs, ys in zip(x.split(most), y.split(most), strict=True):
        loss = loss_of(model(xs), ys) * len(xs) / len(x)
        loss.backward()
        total += loss.item()
    return total


class _Watched(nn.Module):
    """Notes how many rows come in at once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        return self.model(x)


@exercise(
    backward_in_pieces,
    "`x.split(most)` gives pieces of at most `most` rows, and `backward()` adds to `.grad`.",
    "Each piece's loss is the mean of *its* rows. Its share in the mean of all is len(piece) / len(x).",
    "Multiply each loss by its share before `backward()`, and add up the same numbers for the loss that you return.",
)
def _backward_in_pieces(answer):
    widths = [8, 32, 5]
    for rows, most in ((12, 4), (10, 4), (7, 100), (5, 1)):
        x, y = torch.randn(rows, 8), torch.randint(5, (rows,))
        model = _Watched(network(widths))
        whole = cross_entropy(model.model(x), y)
        right = torch.autograd.grad(whole, list(model.parameters()))
        got = answer(model, cross_entropy, x.clone(), y.clone(), most)
        case = f"{rows} rows, at most {most} at a time"
        if not model.rows:
            wrong(f"{case}: the model was not called.")
        if max(model.rows) > most:
            wrong(f"{case}: {max(model.rows)} rows went through the model at once.", expected=f"at most {most}",
                  got=f"pieces of {model.rows}")
        if any(p.grad is None for p in model.parameters()):
            wrong(f"{case}: a parameter has no gradient afterwards.", expected="a gradient for each", got="None")
        ours = torch.cat([p.grad.flatten() for p in model.parameters()])
        wanted = torch.cat([g.flatten() for g in right])
        if not torch.allclose(ours, wanted, rtol=1e-4, atol=1e-6):
            times = (ours.norm() / wanted.norm()).item()
            wrong(f"{case}: the gradient is not that of the whole batch.", expected="the gradient of the whole batch",
                  got=f"one {times:.2f} times as long, pieces of {model.rows} rows")
        if isinstance(got, torch.Tensor) and got.requires_grad:
            wrong(f"{case}: the loss that you return holds its graph, and so the activations.", expected="a float",
                  got=got)
        expect(f"{case}: the loss of the whole batch", whole.item(), got, tol=1e-4)
    return "The gradient and the loss of the whole batch, in pieces that fit."
