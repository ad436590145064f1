"""The models that the checks on DDP hand to an answer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..machine import pick

CASES = (
    ("All replicas are equal", True),
    ("One weight of rank 2 is another", False),
    ("Two weights of rank 1 have changed places", False),
    ("Only a frozen weight of rank 0 is another", False),
    ("All replicas are equal again", True),
)


def case(number: int) -> nn.Sequential:
    """The model of this rank in `CASES[number]`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_((torch.arange(parameter.numel()) + i).view_as(parameter) / 8)
        model[0].requires_grad_(False)
        weight = model[2].weight
        if number == 1 and dist.get_rank() == 2:
            weight[1, 3] += 1e-6
        if number == 2 and dist.get_rank() == 1:
            weight[0, 0], weight[0, 1] = weight[0, 1].clone(), weight[0, 0].clone()
        if number == 3 and dist.get_rank() == 0:
            model[0].bias[0] += 1
    return model.to(pick())


class TiedAndFrozen(nn.Module):
    """8 classes in, 8 classes out; the same matrix at both ends, a frozen layer between, and two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.hidden = nn.Linear(6, 6)
        self.out = nn.Linear(6, 8, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.register_buffer("seen", torch.randint(100, (2,)))

    def forward(self, x: Tensor) -> Tensor:  # (N,) int64 -> (N, 8)
        return self.out(torch.tanh(self.hidden(self.frozen(self.embed(x)) * self.scale)))


class HeadFirst(nn.Module):
    """8 classes in, 8 classes out; what is listed first gets its gradient first, and there is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 8)
        self.body = nn.Embedding(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))
