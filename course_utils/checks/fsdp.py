"""The exercises on FSDP2: units that meet a budget of bytes and messages, and a start that never holds the model."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from ..lessons import models
from ..lessons.memory import Alive
from ..machine import pick
from ..ranks.traffic import Traffic
from .old import exercise, wrong
from .on_ranks import on_ranks, same

SECONDS = 30.0  # a collective that some ranks never call ends here, in words
MESSAGES, BYTES = 16, 7.8  # in a step; for each parameter


def choose_units(model, mesh):
    blocks = list(model.blocks)
    for i in range(0, len(blocks), 2):
        fully_shard(blocks[i : i + 2], mesh=mesh)
    fully_shard(model, mesh=mesh)


def _mesh() -> DeviceMesh:
    # The logits are a view, which nobody changes in place.
    warnings.filterwarnings("ignore", message=".* returned a view tensor")
    return init_device_mesh(pick().type, (dist.get_world_size(),))


def _outside(model: nn.Module) -> list[str]:
    """The names of the parameters that are not sharded."""
    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def _step(answer: Callable[[nn.Module, DeviceMesh], Any]) -> dict[str, Any]:
    """What a step of the answer's model holds and sends; its gradient and that of DDP."""
    model = models.GPT(64, layers=8, context=16).to(pick())
    reference, count = copy.deepcopy(model), sum(p.numel() for p in model.parameters())
    ids = torch.full((1, 4), dist.get_rank(), device=pick())
    answer(model, _mesh())
    if outside := _outside(model):
        return {"outside": outside, "called": isinstance(model, FSDPModule)}
    peaks = []
    for _ in range(4):  # the backend may hold a buffer for a moment longer: the least of several steps counts
        for p in model.parameters():
            p.grad = None
        with Traffic() as traffic, Alive(model.parameters()) as alive:
            model(ids).float().square().mean().backward()
        peaks.append(alive.peak / count)
    reference(ids).square().mean().backward()
    for p in reference.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    got = torch.cat([p.grad.full_tensor().float().flatten() for p in model.parameters()])
    return {"gradient": got, "expected": torch.cat([p.grad.flatten() for p in reference.parameters()]),
            "messages": len(traffic.order), "bytes": min(peaks[1:])}


@exercise(
    choose_units,
    "One block a unit: three messages for each of 8, two for the root; too many. All in one: too many bytes.",
    "fully_shard takes a list of modules, too, and makes one unit of them: fully_shard([a, b], mesh=mesh).",
    "Take the blocks two by two, `list(model.blocks)[i : i + 2]`, leave `reshard_after_forward` as it is, and call "
    "fully_shard(model, mesh=mesh) last.",
)
def _choose_units(answer: Callable[[nn.Module, DeviceMesh], Any]) -> str:
    results = on_ranks(_step, answer, ranks=2, seconds=SECONDS)
    found = results[0]
    if "outside" in found:
        names = ", ".join(found["outside"][:3]) + (" …" if len(found["outside"]) > 3 else "")
        last = "" if found["called"] else " Is fully_shard called on the model, after its units?"
        wrong(f"{len(found['outside'])} parameters are not sharded.{last}", expected="each a DTensor", got=names)
    same("the gradient that all ranks together have after a backward", found["expected"], found["gradient"], tol=1e-5)
    most = max(result["bytes"] for result in results)
    said = f"{found['messages']} messages and {most:.2f} bytes a parameter in a step"
    if found["messages"] > MESSAGES:
        wrong(f"{said}: too many messages. Fewer units, or fewer gathers.", expected=f"at most {MESSAGES}",
              got=found["messages"])
    if most > BYTES:
        wrong(f"{said}: too many bytes at once. Smaller units, or units that are resharded after their forward.",
              expected=f"at most {BYTES}", got=round(most, 2))
    return f"{said}, with DDP's gradient."


def start_sharded(make, draw, mesh):
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


def _make() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(40, 40) for _ in range(12)))


def _draw(name: str, shape: torch.Size) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator, device="cpu")


def _started(answer: Callable[..., nn.Module]) -> Any:
    """The peak of the start, and what is wrong with the weights, or the weights."""
    mesh = _mesh()
    with Alive() as alive:
        model = answer(_make, _draw, mesh)
    if not isinstance(model, nn.Module):
        return {"model": model}
    if outside := _outside(model):
        return {"outside": outside}
    if meta := [name for name, p in model.named_parameters() if p.to_local().is_meta]:
        return {"meta": meta}
    return {"most": alive.peak, "weights": {name: p.full_tensor() for name, p in model.named_parameters()}}


@exercise(
    start_sharded,
    "`with torch.device('meta'): model = make()` builds it without memory. Then fully_shard, then "
    "`model.to_empty(device=pick())`: now each rank has room for its rows.",
    "draw(name, p.shape) has the whole's shape, as a DTensor's `.shape` has. This rank needs its rows of it, not the "
    "first ones and not new ones.",
    "distribute_tensor(whole, mesh, p.placements, src_data_rank=None) (from torch.distributed.tensor) makes a DTensor "
    "of what every rank has whole; `p.copy_` it under torch.no_grad(), one parameter after the other.",
)
def _start_sharded(answer: Callable[..., nn.Module]) -> str:
    weights = {name: _draw(name, p.shape) for name, p in _make().named_parameters()}
    whole = sum(p.nbytes for p in weights.values())
    for ranks in (2, 3):
        for rank, found in enumerate(on_ranks(_started, answer, ranks=ranks, seconds=SECONDS)):
            where = f"rank {rank} of {ranks}"
            if "model" in found:
                wrong(f"{where}: it is to return the model.", expected="a torch.nn.Module", got=found["model"])
            if "outside" in found:
                wrong(f"{where}: parameter {found['outside'][0]} is not sharded.", expected="each a DTensor",
                      got=f"{len(found['outside'])} are plain tensors")
            if "meta" in found:
                wrong(f"{where}: parameter {found['meta'][0]} still has no memory.", expected=f"its rows on {pick()}",
                      got="a tensor on the meta device")
            for name in weights.keys() - found["weights"].keys():
                wrong(f"{where}: there is no parameter {name} any more.")
            for name, expected in weights.items():
                same(f"{where}: the weights of {name}, put together", expected, found["weights"][name])
            if found["most"] > 0.9 * whole:
                wrong(f"{where}: right weights, but at some moment {found['most'] / whole:.2f} of the whole model's "
                      "bytes were here.", expected="its rows, and a tensor or two",
                      got=f"{found['most']:,} of {whole:,} bytes")
    return "The same weights on 2 and on 3 ranks, and no rank ever held them all."
