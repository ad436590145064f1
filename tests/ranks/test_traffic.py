"""Traffic counts what is handed to the process group, by Python and by C++."""

import contextlib
import os
import socket
import struct
import sys
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import Traffic, launch
from tests.tables import rows

RANKS = 4


def each_collective():
    ranks, rank = dist.get_world_size(), dist.get_rank()
    shard, whole = torch.ones(10), torch.ones(10 * ranks)
    pieces = list(torch.ones(ranks, 10))
    with Traffic() as traffic:
        dist.all_reduce(whole)
        dist.all_reduce(whole, async_op=True).wait()
        dist.all_gather(pieces, shard)
        dist.reduce_scatter(shard, pieces)
        dist.broadcast(whole, src=0)
        dist.reduce(whole, dst=0)
        dist.scatter(shard, pieces if rank == 1 else None, src=1)
        dist.gather(shard, pieces if rank == 1 else None, dst=1)
        dist.barrier()
        message = dist.isend(shard, (rank + 1) % ranks)
        dist.recv(shard, (rank - 1) % ranks)
        message.wait()
    dist.all_reduce(whole)  # not counted any more
    return traffic


COUNTS = """
name            calls  bytes  sent
all-reduce      2      320    480
all-gather      1      160    120
reduce-scatter  1      160    120
broadcast       1      160    120
reduce          1      160    120
scatter         1      160    0
gather          1      160    40
barrier         1      0      0
send            1      40     40
recv            1      40     0
"""


def test_every_collective_is_counted():
    for rank, traffic in enumerate(launch(each_collective, ranks=RANKS, device="cpu").results):
        names = {name for name, *_ in rows(COUNTS)}
        assert names == traffic.calls.keys() == traffic.bytes.keys() == traffic.sent.keys()
        for name, calls, size, sent in rows(COUNTS):
            assert traffic.calls[name] == int(calls), name
            assert traffic.bytes[name] == int(size), name
            if rank == 1 and name in ("scatter", "gather"):  # it scatters, and gathers
                sent = {"scatter": 120, "gather": 0}[name]
            assert traffic.sent[name] == int(sent), name


def by_torch():
    """What DDP, fully_shard and parallelize_module hand over in one forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.nn.parallel import DistributedDataParallel

    warnings.simplefilter("ignore")
    x = torch.ones(8, 16, requires_grad=True)

    def model():
        up, down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        return nn.Sequential(up, nn.ReLU(), down)

    ddp = DistributedDataParallel(model())
    fsdp = fully_shard(model())
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor_parallel = parallelize_module(model(), mesh, plan)
    counted = []
    for parallel in (ddp, fsdp, tensor_parallel):
        with Traffic() as traffic:
            parallel(x).sum().backward()
        counted.append(traffic)
    return counted


def test_what_torch_itself_sends_is_counted():
    weights = 2 * 16 * 32 * 4
    for ddp, fsdp, tensor_parallel in launch(by_torch, ranks=RANKS, device="cpu").results:
        assert (ddp.calls, ddp.bytes["all-reduce"]) == ({"all-reduce": 1}, weights)
        assert fsdp.calls.keys() == {"all-gather", "reduce-scatter"}
        assert fsdp.bytes["reduce-scatter"] == weights
        # of the output forward, of x's gradient backward
        assert tensor_parallel.calls == {"all-reduce": 2}
        assert tensor_parallel.bytes == {"all-reduce": 2 * 8 * 16 * 4}


def nested():
    x = torch.ones(1)
    with Traffic() as outer:
        dist.all_reduce(x)
        with Traffic() as inner:
            dist.all_reduce(x)
    with pytest.raises(ZeroDivisionError), Traffic():
        1 / 0  # noqa: B018
    with Traffic() as after, torch.inference_mode():
        dist.all_reduce(torch.ones(1))
    return outer.calls["all-reduce"], inner.calls["all-reduce"], after.calls["all-reduce"]


def test_nested_and_after_an_error():
    assert launch(nested, ranks=2, device="cpu").results == [(2, 1, 1)] * 2


def acknowledged():
    """Bytes acknowledged on this process's TCP connections, once no more come (tcp_info)."""

    def now():
        total = 0
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError, struct.error), socket.socket(fileno=os.dup(fd)) as s:
                info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, 120)[0]
        return total

    before = -1
    while before != (latest := now()):
        before = latest
        time.sleep(0.5)
    return before


def written(size):
    """(bytes by Traffic's count, bytes that this process gave to the kernel's sockets)."""
    x = torch.ones(size)
    dist.all_reduce(x)
    dist.barrier()
    before = acknowledged()
    with Traffic() as traffic:
        dist.all_reduce(x)
    dist.barrier()
    return traffic.bytes_sent, acknowledged() - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count is read as Linux tells it")
def test_an_all_reduce_sends_what_the_kernel_counts():
    for counted, by_the_kernel in launch(written, 1_000_000, ranks=4, device="cpu").results:
        assert counted == 6_000_000
        assert by_the_kernel == pytest.approx(counted, rel=0.02)
