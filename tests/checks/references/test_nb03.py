"""The published solutions of notebook 03 against a measured step and the backward of the whole
batch.
"""

import itertools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.checks.nb03_memory import STEPS, backward_in_pieces, network, predict_peak
from course_utils.lessons.memory import Meter


def test_predict_peak_is_what_a_step_is_measured_to_take():
    for widths, rows in STEPS:
        pairs = itertools.pairwise(widths)
        layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
        model = nn.Sequential(*layers[:-1])
        optimizer = torch.optim.AdamW(model.parameters())
        x, y = torch.randn(rows, widths[0]), torch.randint(widths[-1], (rows,))
        for _ in range(2):  # AdamW has its states from the second step on
            optimizer.zero_grad()
            with Meter(model, optimizer) as meter:
                cross_entropy(model(x), y).backward()
                optimizer.step()
        assert abs(predict_peak(widths, rows) / meter.peak - 1) < 0.06, (widths, rows, meter.peak)


def test_backward_in_pieces_is_the_backward_of_the_whole_batch():
    x, y, model = torch.randn(11, 8), torch.randint(5, (11,)), network()
    loss = cross_entropy(model(x), y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    expected = list(torch.autograd.grad(loss, parameters))
    for most in (1, 4, 11):
        assert abs(backward_in_pieces(model, cross_entropy, x, y, most) - loss.item()) < 1e-5
        torch.testing.assert_close([p.grad for p in parameters], expected)
