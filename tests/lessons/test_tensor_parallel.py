"""Layers split over ranks equal the whole layer, by hand and by torch; shards are where the picture says."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import RankError, Traffic, launch
from course_utils.lessons import shards
from course_utils.lessons.models import GPT, Attention, Block
from course_utils.lessons.tensor_parallel import (
    add_up,
    by_hand,
    fan_out,
    gather,
    heads_each,
    mine,
    reduce_scatter,
)

PLAN = {"attention.q": "column", "attention.k": "column", "attention.v": "column", "attention.out": "row",
        "mlp.up": "column", "mlp.down": "row"}


def block():
    torch.manual_seed(0)
    made = Block(32, 4)
    for p in made.parameters():
        nn.init.normal_(p, std=0.2)
    return made


def by_torch(share_x):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    kinds = {"column": ColwiseParallel, "row": RowwiseParallel}
    whole = block()
    split = copy.deepcopy(whole)
    plan = {name: kinds[kind]() for name, kind in PLAN.items()}
    if share_x:  # one DTensor for q, k and v: their parts of its gradient are added before they are sent
        plan["attention"] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    parallelize_module(split, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    torch.manual_seed(1)
    x, direction = torch.randn(2, 2, 5, 32)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    with Traffic() as traffic:
        outputs = [split(inputs[0]), whole(inputs[1])]
        for y in outputs:
            y.backward(direction)
    pairs = [(*outputs,), (inputs[0].grad, inputs[1].grad)]
    for p, q in zip(split.parameters(), whole.parameters(), strict=True):
        pairs.append((getattr(p.grad, "full_tensor", lambda grad=p.grad: grad)(), q.grad))
    return max((a - b).abs().max().item() for a, b in pairs), traffic, shards.parts(split)


@pytest.mark.parametrize(("ranks", "share_x"), [(2, False), (2, True), (4, True)])
def test_a_block_split_by_torch_equals_the_whole(ranks, share_x):
    results = launch(by_torch, share_x, ranks=ranks, device="cpu", time_limit=60).results
    for difference, traffic, _ in results:
        assert difference <= 1e-5
        assert traffic.calls["all-reduce"] == (4 if share_x else 6)
        assert traffic.bytes["all-reduce"] == traffic.calls["all-reduce"] * 2 * 5 * 32 * 4
    up = [next(part for part in parts if part.name == "mlp.up.weight") for *_, parts in results]
    assert [part.start for part in up] == [(128 // ranks * rank, 0) for rank in range(ranks)]
    assert {part.shape for part in up} == {(128 // ranks, 32)}
    picture = shards.picture([parts for *_, parts in results], title="A block")
    assert f"each of {ranks} ranks holds" in repr(picture)
    assert f"mlp.down.weight 32 x 128: rank 0 [0:32, 0:{128 // ranks}]" in repr(picture)
    assert "norm1.weight 32: rank 0 [0:32]" in repr(picture)


def ends(size):
    x = torch.arange(float(size)).requires_grad_()
    y = add_up((dist.get_rank() + 1) * fan_out(x))
    y.sum().backward()
    return y.detach(), x.grad


def test_the_two_ends_are_each_others_gradient():
    for y, gradient in launch(ends, 3, ranks=3, device="cpu", time_limit=30).results:
        assert torch.equal(y, 6 * torch.arange(3.0))  # 1 + 2 + 3 times x
        assert torch.equal(gradient, torch.full((3,), 6.0))


def test_the_two_ends_of_a_sequence_are_each_others_gradient():
    def ends():
        rank, ranks = dist.get_rank(), dist.get_world_size()
        whole = torch.arange(2.0 * 6 * 4).view(2, 6, 4)
        x = mine(whole, 1).clone().requires_grad_()
        with Traffic() as traffic:
            together = gather(x)
            y = reduce_scatter((rank + 1) * together)
            y.backward((mine(whole, 1) + 1).transpose(1, 2).contiguous().transpose(1, 2))
        assert torch.equal(together, whole)
        assert torch.equal(y, ranks * (ranks + 1) / 2 * mine(whole, 1))
        assert torch.equal(x.grad, ranks * (ranks + 1) / 2 * (mine(whole, 1) + 1))
        return traffic.order

    for ranks in (2, 3):
        for order in launch(ends, ranks=ranks, device="cpu", time_limit=30).results:
            assert order == [("all-gather", 192), ("reduce-scatter", 192), ("all-gather", 192), ("reduce-scatter", 192)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_model_split_by_hand_equals_the_whole(ranks):
    def outputs():
        model = GPT(20, layers=2, width=32)
        ids = torch.arange(2 * 8).view(2, 8)
        whole = model(ids)
        return (by_hand(model)(ids) - whole).abs().max().item(), model.blocks[0].mlp.up.weight.shape[0]

    for difference, columns in launch(outputs, ranks=ranks, device="cpu", time_limit=30).results:
        assert difference <= 1e-5
        assert columns == 128 // ranks


def refused(what):
    if what == "heads":
        heads_each(Attention(24, 4))
    elif what == "model":
        by_hand(GPT(20, width=24, heads=2))
    else:
        mine(torch.zeros(3, 7), 1)


@pytest.mark.parametrize(("what", "words"), [
    ("heads", r"4 heads cannot be dealt to 3 ranks: .* must divide the number of heads"),
    ("model", "2 heads cannot be dealt to 3 ranks"),
    ("rows", r"7 of shape \(3, 7\) cannot be cut into 3 equal parts"),
])
def test_what_cannot_be_split_is_said(what, words):
    with pytest.raises(RankError, match=words):
        launch(refused, what, ranks=3, device="cpu", time_limit=30)


def test_whole_parameters_lie_on_every_rank():
    held = shards.parts(nn.Linear(3, 2))
    assert [(part.name, part.whole, part.start, part.shape) for part in held] == [
        ("weight", (2, 3), (0, 0), (2, 3)), ("bias", (2,), (0,), (2,))]
    assert shards.finding([held, held]) == "each of 2 ranks holds 100% of the numbers"
    assert math.isclose(sum(math.prod(part.shape) for part in held), 8)
