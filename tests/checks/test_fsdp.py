"""The exercises on FSDP2: right answers of many kinds pass, plausible wrong ones fail in words that say why."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from course_utils import check, pick
from tests.checks.judging import judge, solved


def shard(model, mesh, groups, root=None, **options):
    for group in groups:
        fully_shard(group, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, reshard_after_forward=root)


def in_pairs(model):
    return [list(pair) for pair in zip(model.blocks[::2], model.blocks[1::2], strict=True)]


def pairs_that_reshard(model, mesh):
    shard(model, mesh, in_pairs(model), reshard_after_forward=True)


def root_that_reshards(model, mesh):
    shard(model, mesh, in_pairs(model), root=True)


def from_the_end(model, mesh):
    shard(model, mesh, in_pairs(model)[::-1])


def ends_with_the_blocks(model, mesh):
    first, *inner, last = in_pairs(model)
    shard(model, mesh, [[model.embed, *first], *inner, [*last, model.norm, model.head]])


def by_its_own_mesh(model, mesh):
    for pair in in_pairs(model):
        fully_shard(pair)
    return fully_shard(model)


@pytest.mark.parametrize(
    "answer", [pairs_that_reshard, root_that_reshards, from_the_end, ends_with_the_blocks, by_its_own_mesh]
)
def test_choose_units_right(answer):
    solved("choose_units", answer)


def test_choose_units_solution():
    verdict = check.choose_units(check.choose_units.published)
    assert verdict, str(verdict)
    assert "14 messages" in verdict.text


def one_unit(model, mesh):
    fully_shard(model, mesh=mesh)


def each_block(model, mesh):
    shard(model, mesh, model.blocks)


def each_block_kept(model, mesh):
    shard(model, mesh, model.blocks, reshard_after_forward=False)


def pairs_kept(model, mesh):
    shard(model, mesh, in_pairs(model), reshard_after_forward=False)


def fours(model, mesh):
    shard(model, mesh, [list(model.blocks[:4]), list(model.blocks[4:])])


def every_second(model, mesh):
    """The others fall to the root."""
    shard(model, mesh, model.blocks[::2])


def layers(model, mesh):
    shard(model, mesh, [m for m in model.blocks.modules() if isinstance(m, nn.Linear)])


def no_root(model, mesh):
    for pair in in_pairs(model):
        fully_shard(pair, mesh=mesh)


def nothing(model, mesh):
    return model


def the_list_of_blocks(model, mesh):
    fully_shard(model.blocks, mesh=mesh)
    fully_shard(model, mesh=mesh)


def half_precision(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for group in [*in_pairs(model), model]:
        fully_shard(group, mesh=mesh, mp_policy=policy)


def one_rank_fewer(model, mesh):
    if dist.get_rank() == 0:
        each_block(model, mesh)
    else:
        one_unit(model, mesh)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (one_unit, "too many bytes at once"),
        (each_block, "26 messages"),
        (each_block_kept, "18 messages"),
        (pairs_kept, "too many bytes at once"),
        (fours, "too many bytes at once"),
        (every_second, "too many bytes at once"),
        (layers, "too many messages"),
        (no_root, "Is fully_shard called on the model"),
        (nothing, "parameters are not sharded"),
        (the_list_of_blocks, "does not support containers"),
        (half_precision, "the gradient that all ranks together have"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_choose_units_wrong(answer, words):
    judge("choose_units", answer, words)


def test_choose_units_that_differ_between_ranks(monkeypatch):
    from course_utils.checks import fsdp

    monkeypatch.setattr(fsdp, "SECONDS", 3.0)
    verdict = check.choose_units(one_rank_fewer)
    assert verdict.state == "wrong"
    assert "rank" in verdict.text


def on_meta(make, mesh, *, units=True):
    with torch.device("meta"):
        model = make()
    for layer in model if units else []:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def scattered_by_rank_0(make, draw, mesh):
    model = on_meta(make, mesh, units=False).to_empty(device=pick())
    for name, p in model.named_parameters():
        p.data.copy_(distribute_tensor(draw(name, p.shape).to(pick()), mesh, [Shard(0)]))
    return model


def own_rows(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=mesh.device_type)
    for name, p in model.named_parameters():
        rows = draw(name, p.shape).chunk(mesh.size())
        if dist.get_rank() < len(rows):
            p.detach().to_local().copy_(rows[dist.get_rank()])
    return model


def rows_counted(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    with torch.no_grad():
        for name, p in model.named_parameters():
            each = -(-p.shape[0] // mesh.size())
            start = mesh.get_local_rank() * each
            p.to_local()[:] = draw(name, p.shape)[start : start + each].to(pick())
    return model


def assigned(make, draw, mesh):
    """Without `to_empty`: the shards come from outside."""
    model = on_meta(make, mesh)
    state = {}
    for name, p in model.named_parameters():
        state[name] = distribute_tensor(draw(name, p.shape).to(pick()), mesh, p.placements, src_data_rank=None)
    model.load_state_dict(state, assign=True)
    return model


def layer_by_layer(make, draw, mesh):
    """Each layer gets its memory when it is its turn."""
    model = on_meta(make, mesh)
    for number, layer in enumerate(model):
        layer.to_empty(device=pick())
        for name, p in layer.named_parameters():
            whole = draw(f"{number}.{name}", p.shape).to(pick())
            p.data = distribute_tensor(whole, mesh, p.placements)
    return model


@pytest.mark.parametrize("answer", [scattered_by_rank_0, own_rows, rows_counted, assigned])
def test_start_sharded_right(answer):
    solved("start_sharded", answer)


def test_start_sharded_solution():
    solved("start_sharded", check.start_sharded.published)


def fill(model, draw, mesh):
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(distribute_tensor(draw(name, p.shape).to(pick()), mesh, p.placements, src_data_rank=None))
    return model


def usual(make, draw, mesh):
    model = make().to(pick())
    for name, p in model.named_parameters():
        p.data.copy_(draw(name, p.shape))
    return fully_shard(model, mesh=mesh)


def empty_too_early(make, draw, mesh):
    with torch.device("meta"):
        model = make()
    model.to_empty(device=pick())
    return fill(fully_shard(model, mesh=mesh), draw, mesh)


def made_then_meta(make, draw, mesh):
    return fill(fully_shard(make().to("meta"), mesh=mesh).to_empty(device=pick()), draw, mesh)


def all_drawn_first(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    every = {name: draw(name, p.shape).to(pick()) for name, p in model.named_parameters()}
    return fill(model, lambda name, shape: every[name], mesh)


def no_memory(make, draw, mesh):
    return on_meta(make, mesh)


def never_filled(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def drawn_by_each_rank(make, draw, mesh):
    """Numbers of the shard's own shape: every rank draws the same ones."""
    model = on_meta(make, mesh).to_empty(device=pick())
    for name, p in model.named_parameters():
        p.to_local().data.copy_(draw(name, p.to_local().shape))
    return model


def first_rows(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    for name, p in model.named_parameters():
        p.to_local().data.copy_(draw(name, p.shape)[: len(p.to_local())])
    return model


def weights_only(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    for name, p in model.named_parameters():
        whole = draw(name, p.shape) if name.endswith("weight") else torch.zeros(p.shape, device="cpu")
        p.data.copy_(distribute_tensor(whole.to(pick()), mesh, p.placements, src_data_rank=None))
    return model


def not_sharded(make, draw, mesh):
    with torch.device("meta"):
        model = make()
    model.to_empty(device=pick())
    for name, p in model.named_parameters():
        p.data.copy_(draw(name, p.shape))
    return model


def plain_copied_into_shards(make, draw, mesh):
    model = on_meta(make, mesh).to_empty(device=pick())
    for name, p in model.named_parameters():
        p.data.copy_(draw(name, p.shape).to(pick()))
    return model


def torch_seeded(make, draw, mesh):
    torch.manual_seed(0)
    model = on_meta(make, mesh).to_empty(device=pick())
    for layer in model:
        layer.reset_parameters()
    return model


def returns_nothing(make, draw, mesh):
    fill(on_meta(make, mesh).to_empty(device=pick()), draw, mesh)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (usual, "of the whole model's bytes were here"),
        (empty_too_early, "of the whole model's bytes were here"),
        (made_then_meta, "of the whole model's bytes were here"),
        (all_drawn_first, "of the whole model's bytes were here"),
        (no_memory, "still has no memory"),
        (never_filled, "the weights of 0.weight, put together"),
        (drawn_by_each_rank, "the weights of 0.weight, put together"),
        (first_rows, "the weights of 0.weight, put together"),
        (weights_only, "the weights of 0.bias, put together"),
        (not_sharded, "is not sharded"),
        (plain_copied_into_shards, "got mixed torch.Tensor and DTensor"),
        (torch_seeded, "the weights of 0.weight, put together"),
        (lambda make, draw, mesh: 3, "it is to return the model"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_start_sharded_wrong(answer, words):
    judge("start_sharded", answer, words)


def test_start_sharded_that_returns_nothing():
    assert check.start_sharded(returns_nothing).state == "wrong"


def test_layers_get_their_memory_in_turn():
    verdict = check.start_sharded(layer_by_layer)
    assert verdict or "0.weight" in verdict.text, str(verdict)
