"""Answers to the exercises of notebook 09."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from course_utils import pick
from course_utils.checks.nb09_fsdp import choose_units, start_sharded


def units(cut, root=True, **options):
    def in_units(model, mesh):
        for unit in cut(list(model.blocks)):
            fully_shard(unit, mesh=mesh, **options)
        if root:
            fully_shard(model, **options)  # its own mesh: all ranks

    return in_units


def by(count):
    return lambda blocks: [blocks[i : i + count] for i in range(0, len(blocks), count)]


def ends_with_the_blocks(model, mesh):
    first, *inner, last = by(2)(list(model.blocks))
    for unit in ([model.embed, *first], *inner, [*last, model.norm, model.head], model):
        fully_shard(unit, mesh=mesh)


def never_synchronised(model, mesh):
    choose_units(model, mesh)
    model.set_requires_gradient_sync(False)


def on_meta(make, mesh):
    with torch.device("meta"):
        model = make()
    return fully_shard(model, mesh=mesh)


def assigned(make, draw, mesh):
    model = on_meta(make, mesh)
    state = {}
    for name, p in model.named_parameters():
        whole = draw(name, p.shape).to(pick())
        state[name] = distribute_tensor(whole, mesh, p.placements, src_data_rank=None)
    model.load_state_dict(state, assign=True)
    return model


def own_rows(rows):
    @torch.no_grad()
    def start(make, draw, mesh):
        model = on_meta(make, mesh).to_empty(device=pick())
        for name, p in model.named_parameters():
            part = p.to_local()
            start = -(-p.shape[0] // mesh.size()) * dist.get_rank()
            part.copy_(rows(draw(name, p.shape), part, start))
        return model

    return start


def whole_first(make, draw, mesh):
    model = make().to(pick())
    for name, p in model.named_parameters():
        p.data.copy_(draw(name, p.shape))
    return fully_shard(model, mesh=mesh)


def evaluating(make, draw, mesh):
    return start_sharded(make, draw, mesh).eval()


def frozen(make, draw, mesh):
    return start_sharded(make, draw, mesh).requires_grad_(False)


RIGHT = {
    "choose_units": [
        ends_with_the_blocks,
        units(lambda blocks: by(2)(blocks)[::-1], reshard_after_forward=True),
    ],
    "start_sharded": [
        own_rows(lambda whole, part, start: whole[start : start + len(part)]),
        assigned,
    ],
}
WRONG = {
    "choose_units": [units(by(1)), units(by(4)), never_synchronised, units(by(2), root=False)],
    "start_sharded": [
        whole_first,
        frozen,
        evaluating,
        own_rows(lambda whole, part, start: whole.chunk(dist.get_world_size())[dist.get_rank()]),
    ],
}
