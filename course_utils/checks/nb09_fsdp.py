"""Exercises of notebook 09, on 2 and 3 real ranks: FSDP2's units, a start in shards."""

import zlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ..lessons import models
from ..lessons.memory import Alive
from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost
from .exercise import Values, exercise
from .instruments import returned


def choose_units(model, mesh):
    """Two blocks a unit; embedding, last norm and head are left to the root."""
    blocks = list(model.blocks)
    for i in range(0, len(blocks), 2):
        fully_shard(blocks[i : i + 2], mesh=mesh)
    fully_shard(model, mesh=mesh)


def outside(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def after_backward(model: nn.Module) -> Values:
    grads = {name: p.grad for name, p in model.named_parameters()}
    missing = [name for name, grad in grads.items() if grad is None]
    yield "backward: parameters without a gradient", missing
    means = {name: grad.full_tensor() for name, grad in grads.items()}
    yield "the gradient, the mean over all ranks", means


@exercise(choose_units, ranks=(2,), seconds=120)
def _(answer):
    model = models.GPT(64, layers=8, context=16).to(pick())
    count = sum(p.numel() for p in model.parameters())
    ids = torch.full((1, 4), dist.get_rank(), device=pick())
    answer(model, init_device_mesh(pick().type, (dist.get_world_size(),)))
    yield "parameters of the given model that are not sharded", outside(model)
    peaks = []
    # the backend may hold a buffer for a moment longer: the least of many steps counts
    for _ in range(12):
        model.zero_grad()
        with Traffic() as traffic, Alive(model.parameters()) as alive:
            model(ids).float().square().mean().backward()
        peaks.append(round(alive.peak / count, 2))
    yield from after_backward(model)
    yield "messages in a step", AtMost(len(traffic.order), 16)
    yield "the most bytes at once, for each parameter", AtMost(min(peaks), 7.8)
    yield (
        "",
        f"{len(traffic.order)} messages and {min(peaks)} bytes a parameter in a step, with DDP's "
        "gradient.",
    )


def start_sharded(make, draw, mesh):
    """The model with DTensor parameters: made on `meta`, sharded, then filled tensor by tensor."""
    from torch.distributed.tensor import distribute_tensor

    with torch.device("meta"):
        model = make()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh).to_empty(device=pick())
    for name, p in model.named_parameters():
        whole = draw(name, p.shape).to(pick())  # one tensor, for a moment
        with torch.no_grad():
            p.copy_(distribute_tensor(whole, mesh, p.placements, src_data_rank=None))
    return model


def drawn_by_each_rank(make, draw, mesh):
    model = start_sharded(make, draw, mesh)
    for name, p in model.named_parameters():
        p.detach().to_local().copy_(draw(name, p.to_local().shape))
    return model


def make() -> nn.Sequential:
    """On some numbers of ranks, some of them have fewer rows than others, or none."""
    return nn.Sequential(*(nn.Linear(40, 40) for _ in range(12)), nn.Linear(40, 4), nn.Linear(4, 1))


def draw(name: str, shape: torch.Size) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator, device="cpu") / 5


@exercise(
    start_sharded,
    ranks=(2, 3),
    seconds=120,
    mistakes={
        "draw got the shape of this rank's rows, so every rank has drawn the same "
        "ones": drawn_by_each_rank,
    },
)
def _(answer):
    whole = sum(p.nbytes for p in make().parameters())
    with Alive() as alive:
        model = answer(make, draw, init_device_mesh(pick().type, (dist.get_world_size(),)))
    yield "what it returns", returned(model)
    yield "is it in training mode", model.training
    yield "parameters that are not sharded", outside(model)
    parts = {name: p.to_local() for name, p in model.named_parameters()}
    without = [name for name, part in parts.items() if part.is_meta]
    yield "parameters that still have no memory", without
    weights = {name: p.full_tensor() for name, p in model.named_parameters()}
    yield "the weights, put together", weights
    peak = AtMost(round(alive.peak / whole, 2), 0.9)
    yield "the most bytes at once, the whole model's being 1", peak
    output = model(torch.full((2, 40), 1.0 + dist.get_rank(), device=pick()))
    yield "the model's output", output
    output.square().mean().backward()
    yield from after_backward(model)
    yield "", "The same weights on 2 and on 3 ranks, and no rank ever held them all."
