"""Answers to the exercises of notebook 03."""

import itertools
from operator import mul

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from course_utils.checks.nb03_memory import backward_in_pieces, onto_old_ones, predict_peak


def by_module(widths, rows):
    layers = [torch.nn.Linear(a, b, device="meta") for a, b in itertools.pairwise(widths)]
    kept = sum(layer.out_features for layer in layers[:-1]) + 2 * layers[-2].out_features
    return torch.tensor(
        12 * sum(p.numel() for layer in layers for p in layer.parameters()) + 4 * rows * kept
    )


def with_numpy(widths, rows):
    wide = np.array(widths)
    parameters = (wide[:-1] * wide[1:]).sum() + wide[1:].sum()
    return np.float64(12 * parameters + 4 * rows * (wide[1:-1].sum() + 2 * wide[-2]))


def with_more(numbers):
    """The right prediction and so many more numbers a row."""
    return lambda widths, rows: predict_peak(widths, rows) + 4 * rows * numbers(widths)


def cut(x, y, most):
    return zip(x.split(most), y.split(most), strict=True)


def by_index(x, y, most):
    for start in range(0, len(x), most):
        rows = torch.arange(start, min(start + most, len(x)))
        yield x[rows], y[rows]


def labels_in_chunks(x, y, most):
    """Of nine rows, four at most: 4, 4 and 1 of x, 3, 3 and 3 of y."""
    parts = x.split(most)
    return zip(parts, y.chunk(len(parts)), strict=True)


def by(pieces, counts=lambda x, y: len(x)):
    def backward_in_pieces(model, loss_of, x, y, most):
        total = 0
        model.zero_grad()
        for xs, ys in pieces(x, y, most):
            part = loss_of(model(xs), ys) * (counts(xs, ys) / counts(x, y))
            part.backward()
            total += part.detach()
        return total

    return backward_in_pieces


def with_autograd_grad(model, loss_of, x, y, most):
    parameters, total = [p for p in model.parameters() if p.requires_grad], 0.0
    sums = [torch.zeros_like(p) for p in parameters]
    for xs, ys in cut(x, y, most):
        loss = loss_of(model(input=xs), ys) * len(xs) / len(x)
        for gradient, more in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
            gradient += more
        total += loss.item()
    for parameter, gradient in zip(parameters, sums, strict=True):
        parameter.grad = gradient
    return total


def one_backward_at_the_end(model, loss_of, x, y, most):
    model.zero_grad()
    total = sum(loss_of(model(xs), ys) * len(xs) / len(x) for xs, ys in cut(x, y, most))
    total.backward()
    return total.item()


def times_zero(model, *given):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 0  # nan stays
    return onto_old_ones(model, *given)


def zero_everywhere(model, *given):
    for parameter in model.parameters():
        parameter.grad.zero_()
    return onto_old_ones(model, *given)


def thaws(model, *given):
    return backward_in_pieces(model.requires_grad_(True), *given)


def leaves_hooks(model, loss_of, x, y, most):
    """The hooks scale each piece's gradient, and the next user's."""
    share = 1.0
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * share)
    model.zero_grad()
    total = 0.0
    for xs, ys in cut(x, y, most):
        share = len(xs) / len(x)
        loss = loss_of(model(xs), ys)
        loss.backward()
        total += share * loss.item()
    return total


def and_a_step(model, *given):
    loss = backward_in_pieces(model, *given)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


RIGHT = {
    "predict_peak": [by_module, with_numpy],
    "backward_in_pieces": [by(by_index), with_autograd_grad],
}
WRONG = {
    "predict_peak": [
        with_more(lambda widths: 2 * (max(widths[1:-1]) - widths[-2])),
        with_more(lambda widths: -widths[-2]),
        with_more(lambda widths: -sum(widths[2:-2])),  # the first hidden layer and the last
        with_more(lambda widths: 2 * (min(widths[1:-1]) - widths[-2])),
        with_more(lambda widths: widths[0]),
        with_more(lambda widths: widths[-1]),
        lambda widths, rows: predict_peak(widths, rows) - 8 * sum(widths[1:]),
        lambda w, rows: predict_peak(w, rows) - 12 * sum(map(mul, w[2:], w[3:])),  # two layers
        lambda *given: int(np.int64(predict_peak(*given)).astype(np.int32)),
    ],
    "backward_in_pieces": [
        one_backward_at_the_end,
        by(labels_in_chunks),
        by(cut, counts=lambda x, y: (y != 0).sum()),
        by(cut, counts=lambda x, y: (x != 0).sum()),
        and_a_step,
        times_zero,
        zero_everywhere,
        thaws,
        leaves_hooks,
        lambda model, loss_of, *given: backward_in_pieces(model, cross_entropy, *given),
    ],
}
