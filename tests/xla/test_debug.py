"""`xla.counters()` counts what torch_xla does, and starts nothing; `xla.sharding` says what each
device holds, `xla.collectives` what devices send.
"""

import os

import pytest

pytest.importorskip("torch_xla")

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

from course_utils import xla
from course_utils.pictures.shards import Part
from course_utils.xla.debug import _members
from tests.python import python

STEPS = """
import torch, torch_xla
from course_utils.xla import Counters, counters

assert counters() == Counters()
assert not torch_xla._XLAC._xla_runtime_is_initialized()
device = torch_xla.device()
torch.ones(1).to(device) * 2  # the scalar is a tensor that is copied once
torch_xla.sync()
for size, compiles in ((4, 1), (4, 0), (8, 1)):
    before = counters()
    x = torch.ones(size).to(device)
    y = x * 2 + 1
    torch_xla.sync()
    assert counters() - before == Counters(compiles, 1, 1, 0), counters() - before
before = counters()
y.cpu()
assert str(counters() - before) == "0 compiles, 0 executions, 0 uploads, 1 download"
for _ in range(50):
    before = counters()
    y = y * 2 + 1
    torch_xla.sync()
    assert (counters() - before).executions == 1  # seen at once, though `sync` does not wait
"""


def test_counts():
    """In a process of its own, where nothing of XLA was touched yet."""
    python("-c", STEPS, env=os.environ | {"PJRT_DEVICE": "CPU"})


CUTS = {
    "rows": ((8, 6), ("a",), (4,), ("a", None)),
    "both dims, each by an axis": ((8, 6), ("a", "b"), (2, 2), ("b", "a")),
    # two devices get fewer, or none
    "rows that do not divide": ((6, 4), ("a",), (4,), ("a", None)),
    "nothing": ((8,), ("a",), (4,), (None,)),
}


def cut_tensors():
    """Of each tensor: what `xla.sharding` says, the shards that the devices hold, the whole."""
    found = {}
    for name, (shape, axes, sizes, spec) in CUTS.items():
        x = torch.arange(float(torch.Size(shape).numel())).view(shape).to(torch_xla.device())
        xs.mark_sharding(x, xs.Mesh(np.arange(4), sizes, axes), spec)
        found[name] = (
            xla.sharding({"x": x}),
            [s for s, _ in torch_xla._XLAC._get_local_shards([x])[0]],
            x.cpu(),
        )
    return found


def test_says_what_devices_hold():
    for held, shards, whole in xla.launch(cut_tensors, spmd=True, cores=4).results[0].values():
        for [part], shard in zip(held, shards, strict=True):
            assert part.whole == whole.shape
            region = tuple(slice(a, a + n) for a, n in zip(part.start, part.shape, strict=True))
            # a shard is filled up where it does not divide
            mine = tuple(slice(0, n) for n in part.shape)
            assert torch.equal(shard[mine], whole[region])


def several():
    device, mesh = torch_xla.device(), xs.Mesh(np.arange(4), (4,), ("a",))
    layer = torch.nn.Linear(4, 8).to(device)
    xs.mark_sharding(layer.weight, mesh, ("a", None))
    x = torch.ones(2, 4).to(device)
    wrapped = xs.mark_sharding(torch.ones(8, 2).to(device), mesh, ("a", None))
    torch_xla.sync()
    before = xla.counters()
    y = layer(x)
    torch_xla.sync()
    return (xla.counters() - before).executions, xla.sharding(
        {"bias": layer.bias, "y": y, "wrapped": wrapped}
    )


def test_what_is_whole_what_xla_decided_and_its_runs():
    runs, held = xla.launch(several, spmd=True, cores=4).results[0]
    assert runs == 1, "on all devices at once"
    follows = Part("y", (2, 8), (0, 6), (2, 2))
    assert held[3] == [
        Part("bias", (8,), (0,), (8,)),
        follows,
        Part("wrapped", (8, 2), (6, 0), (2, 2)),
    ]


def products():
    """What `x @ w` sends on four devices, cut as in notebook 17."""
    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"
    mesh = xs.Mesh(np.arange(4), (4,), ("a",))
    found = []
    for cut_x, cut_w in ((("a", None), (None, None)), ((None, "a"), ("a", None))):
        x, w = (torch.rand(8, 8).to(torch_xla.device()) for _ in range(2))
        xs.mark_sharding(x, mesh, cut_x)
        xs.mark_sharding(w, mesh, cut_w)
        found.append(dict(xla.collectives(x @ w)))
    return found


def test_says_what_devices_send():
    sent = xla.launch(products, spmd=True, cores=4).results[0]
    assert sent == [{}, {("all-reduce", "f32[8,8]", 4): 1}]


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("all-gather(%p), replica_groups={{0,1,2},{3,4,5}}, dimensions={0}", 3),
        ("all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add", 4),
        ("collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 2),
    ],
)
def test_among_how_many_devices(line, devices):
    assert _members(line) == devices
