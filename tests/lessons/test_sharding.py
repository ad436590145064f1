"""What a step holds and sends: DDP and FSDP2 against sizes that are known."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import launch, pick
from course_utils.lessons.models import GPT
from course_utils.lessons.sharding import measured


def replicated():
    model = DDP(GPT(64, layers=2).to(pick()), gradient_as_bucket_view=True)
    return measured(model, torch.optim.Adam(model.parameters()))


def sharded():
    model = GPT(64, layers=2).to(pick())
    mesh = dist.init_device_mesh(pick().type, (dist.get_world_size(),))
    return measured(fully_shard(model, mesh=mesh))


def test_a_replica_keeps_sixteen_bytes_and_sends_one_all_reduce():
    for cost in launch(replicated, ranks=2).results:
        assert cost.kept == pytest.approx([4, 4, 8], abs=0.01)
        assert cost.peak >= 16
        assert cost.sent == pytest.approx({"all-reduce": 4}), "2 (n - 1) / n of 4 bytes"
        assert list(cost.phases) == ["forward", "backward", "optimizer"]
        assert cost.types == "torch.float32"


def test_without_an_optimizer_shards_are_counted():
    for cost in launch(sharded, ranks=2).results:
        assert cost.kept == pytest.approx([2, 2, 0], abs=0.01)
        assert cost.alive[-1] == pytest.approx(4, abs=0.01)
        assert [name for name, _ in cost.traffic.order] == ["all-gather", "reduce-scatter"]
        assert [name.split(".")[0] for _, name in cost.messages] == [
            "_allgather_base_",
            "_reduce_scatter_base_",
        ]
        assert cost.ms > 0
