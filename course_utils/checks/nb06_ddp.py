"""The exercise of notebook 06, looked at on two and three real ranks: a DDP by hand."""

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost
from .exercise import exercise
from .instruments import inside


def hand_ddp(model):
    """Make the model a replica; returns nothing."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    # parameters() gives a tied one once
    trained = [p for p in model.parameters() if p.requires_grad]
    ready = []

    def send_when_all_are_ready(parameter):
        ready.append(parameter)
        if len(ready) < len(trained):
            return
        ready.clear()
        bucket = torch.cat([p.grad.flatten() for p in trained])  # in the same order on every rank
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
        for p, mean in zip(trained, bucket.split([p.numel() for p in trained]), strict=True):
            p.grad.copy_(mean.view_as(p))

    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(send_when_all_are_ready)


class Tangled(nn.Module):
    """Tied and frozen parameters, buffers, a norm, dropout, a part in eval().

    The first and the last gradient are not ready last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)
        self.embed = nn.Embedding(8, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False).eval()
        self.hidden = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.3), nn.Tanh())
        self.out = nn.Linear(6, 8, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(6) + 0.5)
        self.embed.register_buffer("seen", torch.randint(100, (2,)))
        self.register_buffer("shift", torch.rand(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (N,) int64, below 8 -> (N, 8)
        return self.last(
            self.out(self.hidden(self.frozen(self.embed(x)) * self.scale + self.shift))
        )


@exercise(hand_ddp, ranks=(3, 2))
def _(answer):
    torch.manual_seed(dist.get_rank())
    model = Tangled().to(pick())
    before, buffers = [*model.parameters()], dict(model.named_buffers())
    answer(model)
    here = chain(model.parameters(), model.buffers())
    kept = [*map(id, here)] == [*map(id, [*before, *buffers.values()])]
    yield "are its parameters and buffers the tensors from before", kept
    words = "parameters and buffers, which are to be rank 0's; the model is as it was"
    yield words, inside(model) | buffers
    needed = sum(p.numel() * p.element_size() for p in before if p.requires_grad)
    steps = ("the first backward", "the second backward", "a backward that adds to gradients")
    for step, where in enumerate(steps):
        x = (torch.arange(5, device=pick()) * (step + 1) + dist.get_rank()) % 8
        if step < 2:
            model.zero_grad()
        torch.manual_seed(step)
        # a forward may send buffers, as DDP's does; and who clips such gradients is seen
        loss = 100 * nn.functional.cross_entropy(model(x), (x + 1) % 8)
        with Traffic() as traffic:
            loss.backward()
        yield f"the gradients of {where}", {name: p.grad for name, p in model.named_parameters()}
        yield f"the messages of {where}", [name for name, _ in traffic.order]
        yield f"the bytes in the message of {where}", AtMost(traffic.order[0][1], needed)
        torch.optim.SGD(before, lr=0.001).step()
    yield (
        "",
        "Right on three ranks and on two, tied and frozen parameters included: one all-reduce for "
        "each backward.",
    )
