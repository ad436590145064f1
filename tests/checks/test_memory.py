"""The exercises on memory: right answers in several styles pass, plausible wrong ones fail in words that are true."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from course_utils import check
from tests.checks.judging import judge


def numbers(widths):
    return sum(a * b + b for a, b in itertools.pairwise(widths))


def by_module(widths, rows):
    layers = [torch.nn.Linear(a, b, device="meta") for a, b in itertools.pairwise(widths)]
    kept = sum(layer.out_features for layer in layers[:-1]) + 2 * layers[-2].out_features
    return 12 * sum(p.numel() for layer in layers for p in layer.parameters()) + 4 * rows * kept


def with_numpy(widths, rows):
    wide = np.array(widths)
    parameters = (wide[:-1] * wide[1:]).sum() + wide[1:].sum()
    return np.float64(12 * parameters + 4 * rows * (wide[1:-1].sum() + 2 * wide[-2]))


def as_a_tensor(widths, rows):
    return torch.tensor(check.predict_peak.published(widths, rows))


def with_a_loop(widths, rows):
    total = 0
    for i in range(len(widths) - 1):
        total += 12 * (widths[i] + 1) * widths[i + 1]
        if i < len(widths) - 2:
            total += 4 * rows * widths[i + 1]
    return total + 8 * rows * widths[-2]


@pytest.mark.parametrize("answer", [check.predict_peak.published, by_module, with_numpy, as_a_tensor, with_a_loop])
def test_predict_peak_right(answer):
    assert check.predict_peak(answer)


@pytest.mark.parametrize(("answer", "words"), [
    (lambda w, rows: 12 * numbers(w), "times what was measured"),
    (lambda w, rows: 16 * numbers(w), "times what was measured"),
    (lambda w, rows: numbers(w) * 3 + rows * (sum(w[1:-1]) + 2 * w[-2]), "bytes are asked for, not numbers?"),
    (lambda w, rows: 4 * (3 * numbers(w) + rows * sum(w[1:-1])), "times what was measured"),
    (lambda w, rows: 4 * (numbers(w) + rows * (sum(w[1:-1]) + 2 * w[-2])), "times what was measured"),
    (lambda w, rows: 4 * (3 * numbers(w) + sum(w[1:-1]) + 2 * w[-2]), "times what was measured"),
    (lambda w, rows: 8 * (3 * numbers(w) + rows * (sum(w[1:-1]) + 2 * w[-2])), "is 2.00 times what was measured"),
    (lambda w, rows: "12 MB", "bytes are a number"),
    (lambda w, rows: float("nan"), "nan times what was measured"),
])
def test_predict_peak_wrong(answer, words):
    judge("predict_peak", answer, words)


def by_index(model, loss_of, x, y, most):
    total = 0
    for start in range(0, len(x), most):
        rows = slice(start, start + most)
        part = loss_of(model(x[rows]), y[rows]) * (len(x[rows]) / len(x))
        part.backward()
        total += part.detach()
    return total


def by_sums(model, loss_of, x, y, most):
    losses = []
    for xs, ys in zip(torch.split(x, most), torch.split(y, most), strict=True):
        loss = loss_of(model(xs), ys) * len(xs)
        (loss / len(x)).backward()
        losses.append(loss.item())
    return np.float32(sum(losses) / len(x))


def scaling_the_gradients(model, loss_of, x, y, most):
    total = 0.0
    for xs, ys in zip(x.split(most), y.split(most), strict=True):
        loss = loss_of(model(xs), ys)
        (loss * len(xs)).backward()
        total += loss.item() * len(xs)
    for p in model.parameters():
        p.grad /= len(x)
    return total / len(x)


def with_autograd_grad(model, loss_of, x, y, most):
    parameters, total = list(model.parameters()), 0.0
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for xs, ys in zip(x.split(most), y.split(most), strict=True):
        loss = loss_of(model(xs), ys) * len(xs) / len(x)
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad += g
        total += loss.item()
    return total


RIGHT = [check.backward_in_pieces.published, by_index, by_sums, scaling_the_gradients, with_autograd_grad]


@pytest.mark.parametrize("answer", RIGHT)
def test_pieces_right(answer):
    assert check.backward_in_pieces(answer)


def pieces(share, *, returned=lambda losses: sum(loss.item() for loss in losses), cut=None, after=lambda model: None):
    """An answer with its own scale for a piece's loss, and other parts that can be wrong."""

    def answer(model, loss_of, x, y, most):
        losses = []
        for xs, ys in (cut or (lambda x, y, most: zip(x.split(most), y.split(most), strict=True)))(x, y, most):
            loss = loss_of(model(xs), ys) * share(xs, x, most)
            loss.backward()
            losses.append(loss)
            after(model)
        return returned(losses)

    return answer


def only_whole(x, y, most):
    rows = max(1, len(x) // most) * most  # what is left over is forgotten
    return zip(x[:rows].split(most), y[:rows].split(most), strict=True)


def right_share(xs, x, most):
    return len(xs) / len(x)


@pytest.mark.parametrize(("answer", "words"), [
    (pieces(lambda xs, x, most: 1), "the gradient is not that of the whole batch"),
    (pieces(lambda xs, x, most: 1 / -(-len(x) // most)), "the gradient is not that of the whole batch"),
    (pieces(lambda xs, x, most: 1 / most), "the gradient is not that of the whole batch"),
    (pieces(right_share, after=lambda model: model.zero_grad()), "a parameter has no gradient afterwards"),
    (pieces(right_share, cut=lambda x, y, most: [(x, y)]), "rows went through the model at once"),
    (pieces(right_share, cut=lambda x, y, most: zip(x.chunk(most), y.chunk(most), strict=True)), "at once"),
    (pieces(right_share, returned=lambda losses: losses[-1].item()), "the loss of the whole batch"),
    (pieces(right_share, returned=sum), "holds its graph"),
    (pieces(right_share, returned=lambda losses: torch.stack(losses).mean().item()), "the loss of the whole batch"),
    (lambda model, loss_of, x, y, most: 0.0, "the model was not called"),
    (pieces(right_share, cut=lambda x, y, most: only_whole(x, y, most)), "10 rows, at most 4 at a time: the gradient"),
])
def test_pieces_wrong(answer, words):
    verdict = check.backward_in_pieces(answer)
    assert not verdict
    assert words in str(verdict)
