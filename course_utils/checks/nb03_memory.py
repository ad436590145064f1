"""Exercises of notebook 03: predict the peak of a step, and a backward in pieces that fit."""

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy, multi_margin_loss

from ..lessons.memory import SavedTensors
from .compare import AtMost
from .exercise import exercise, patched
from .instruments import inside, rows_into

BY_HOOKS = (
    "this check counts saved tensors by hooks, with which torch.func does not work; it can judge "
    "`backward()` and `torch.autograd.grad`"
)


def predict_peak(widths, rows):
    """Bytes alive where a step's backward begins.

    Parameters, AdamW's states, kept outputs, two gradients.
    """
    parameters = sum(a * b + b for a, b in itertools.pairwise(widths))
    hidden = widths[1:-1]
    return 4 * (3 * parameters + rows * (sum(hidden) + 2 * hidden[-1]))


# Activations are the peak in all of them, and nearly all of it in the first ones. Whatever is
# forgotten or counted in vain, biases, logits, the input or a layer, is more than a tenth of one.
STEPS = (
    ([32, 420, 300, 10], 4000),
    ([64, 128, 512, 10], 2048),
    ([2, 300, 180], 3000),
    ([64, 512, 512, 10], 512),
    ([1000, 4, 2], 1111),
    ([1, 1000, 1], 3),
    ([500, 500, 4, 4, 500, 500, 10], 900),
)
LARGE = [1024, 8192, 8192, 8192, 10], 65_536  # more bytes than 32 bits can count


def with_gradients(widths, rows):
    parameters_and_states = predict_peak(widths, 0)
    return predict_peak(widths, rows) + parameters_and_states / 3


def in_numbers(widths, rows):
    return predict_peak(widths, rows) / 4


@exercise(
    predict_peak,
    tol=0.1,
    mistakes={
        "about as much as with the gradients of the parameters, which are not there yet where the "
        "backward begins": with_gradients,
        "these are numbers, and each takes four bytes": in_numbers,
    },
)
def _(answer):
    for widths, rows in (*STEPS, LARGE):
        yield f"predict_peak({widths}, {rows}), to a tenth", answer([*widths], rows)
    yield "", "Within a tenth each time."


def backward_in_pieces(model, loss_of, x, y, most):
    """Gradients of the whole batch, `most` rows at a time; returns the loss of the whole batch."""
    model.zero_grad()
    total = 0.0
    for xs, ys in zip(x.split(most), y.split(most), strict=True):
        loss = loss_of(model(xs), ys) * len(xs) / len(x)
        loss.backward()
        total += loss.item()
    return total


onto_old_ones = patched(backward_in_pieces, "torch.nn.Module.zero_grad")


def in_full(model, loss_of, x, y, most):
    def heavier(out, of):
        return loss_of(out, of) * len(x) / len(out)

    return backward_in_pieces(model, heavier, x, y, most)


# Of four at a time: other shares of zeros, of other labels, and of rows.
LABELS = torch.tensor([0, 1, 1, 3, 4, 0, 0, 2, 2])


def network() -> nn.Sequential:
    """Rows of any shape with eight numbers; a part of it is in eval(), and a bias is frozen."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(8, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 5)
    )
    model[2].eval()
    model[1].bias.requires_grad_(False)
    return model


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters() if name != "1.bias"}


@contextlib.contextmanager
def kept() -> Iterator[SavedTensors]:
    """What autograd holds for the backward, in the block."""
    try:
        with SavedTensors() as saved:
            yield saved
    except RuntimeError as error:
        if "saved tensor hooks" in str(error):
            error.args = (BY_HOOKS,)
        raise


@exercise(
    backward_in_pieces,
    mistakes={
        "the gradients that were there before are in it, too": onto_old_ones,
        "each piece's mean counts in full; its share is len(piece) / len(x)": in_full,
    },
)
def _(answer):
    for shape, most, loss_of in (
        ((9, 8), 4, cross_entropy),
        ((7, 8), 100, multi_margin_loss),
        ((5, 2, 4), 1, multi_margin_loss),
    ):
        torch.manual_seed(shape[0])
        x = torch.randn(shape)
        x[1] = 0  # as padding is
        y = LABELS[: shape[0]].clone()
        model = network()
        # of earlier backwards, one of which overflowed; the last bias has had none
        model[1].weight.grad = torch.ones_like(model[1].weight)
        model[4].weight.grad = torch.full_like(model[4].weight, torch.nan)
        with SavedTensors() as one:
            loss_of(model(x[:most]), y[:most])

        rows = rows_into(model)
        with kept() as saved:
            loss = answer(model, loss_of, x, y, most)
        case = f"x of shape {shape}, at most {most} rows, {loss_of.__name__}"
        yield f"{case}: the loss of the whole batch", loss
        yield f"{case}: whether that loss holds its graph", getattr(loss, "requires_grad", False)
        yield f"{case}: the gradients", gradients(model)
        yield f"{case}: rows that went through the model at once", AtMost(max(rows), most)
        bytes_kept = AtMost(saved.peak, int(1.5 * one.peak))
        yield f"{case}: bytes kept for the backward at once", bytes_kept
        yield f"{case}: the model afterwards", inside(model)
        yield f"{case}: the batch afterwards", [x, y]
        model.zero_grad()
        loss_of(model(x), y).backward()
        yield f"{case}: the gradients of a backward in one piece, afterwards", gradients(model)
    yield "", "The gradient and the loss of the whole batch, in pieces that fit."
