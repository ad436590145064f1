"""Layers that are split over ranks equal the whole layer; shards are where the picture says."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_utils import launch
from course_utils.lessons.models import GPT, Block
from course_utils.lessons.tensor_parallel import against_whole, by_hand
from course_utils.pictures import shards


def held_of_a_block():
    """A block that torch cuts: `mlp.up` by its outputs, `mlp.down` by its inputs."""
    block = Block(32, 4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(block, mesh, {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
    return shards.parts(block)


def test_shards_are_where_torch_put_them():
    results = launch(held_of_a_block, ranks=2, device="cpu").results
    up = [next(part for part in parts if part.name == "mlp.up.weight") for parts in results]
    assert [(part.start, part.shape) for part in up] == [((0, 0), (64, 32)), ((64, 0), (64, 32))]
    picture = shards.picture(results, title="A block")
    assert repr(picture).startswith("A block: each of 2 ranks holds 67% of the numbers. ")
    assert "mlp.down.weight 32 x 128: rank 0 [0:32, 0:64], rank 1 [0:32, 64:128]" in repr(picture)
    assert "norm1.weight 32: rank 0 [0:32], rank 1 [0:32]" in repr(picture)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_model_split_by_hand_equals_the_whole(ranks):
    def outputs():
        model = GPT(20, layers=2, width=32)
        ids = torch.arange(2 * 8).view(2, 8)
        whole = model(ids)
        return (by_hand(model)(ids) - whole).abs().max().item(), model.blocks[
            0
        ].mlp.up.weight.shape[0]

    for difference, columns in launch(outputs, ranks=ranks, device="cpu").results:
        assert difference <= 1e-5
        assert columns == 128 // ranks


def test_a_block_against_the_whole():
    """What is equal, what was sent; and a block whose sum was forgotten is far from the whole."""

    def found(forget):
        block: Any = by_hand(GPT(20, layers=1, width=32)).blocks[0]
        if forget:
            block.mlp.down.leave = lambda sums: sums
        whole = GPT(20, layers=1, width=32).blocks[0]
        return against_whole(block, whole, shape=(2, 8, 32))

    for worst, forward, backward, saved in launch(found, False, ranks=2, device="cpu").results:
        assert worst <= 1e-5
        assert (forward.calls["all-reduce"], backward.calls["all-reduce"]) == (2, 4)
        assert saved > 0
    for worst, *_ in launch(found, True, ranks=2, device="cpu").results:
        assert worst > 1e-3
