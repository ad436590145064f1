"""The small networks that several notebooks share, with weights that are equal on every machine, rank and device."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from .errors import CourseError


def mlp(width: int = 64, *, seed: int = 0) -> nn.Sequential:
    """Digits in, ten logits out: 64 -> width -> width -> 10, on the CPU.

    The weights come from a generator of their own, so they do not depend on torch.manual_seed and do not disturb it.
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise CourseError(f"mlp({width!r}): width is the number of hidden units, a whole number from 1, e.g. mlp(64).")
    sizes = (64, width, width, 10)
    linear = [nn.utils.skip_init(nn.Linear, i, o) for i, o in itertools.pairwise(sizes)]
    generator = torch.Generator().manual_seed(seed)
    for layer in linear:
        bound = layer.in_features**-0.5  # what nn.Linear itself uses
        for parameter in (layer.weight, layer.bias):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    first, second, last = linear
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


class LinearRegression(nn.Module):
    """The model of many older posts on multi-GPU training: one linear layer, x (N, inputs) -> (N, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)
