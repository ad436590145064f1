"""`xla.sharding` says, and draws, what each device of an SPMD program really holds."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("torch_xla")

import torch

from course_utils import xla
from course_utils.lessons.shards import Part


def program(devices, shape, axes, sizes, spec):
    """A tensor, marked; what `xla.sharding` says, and the shards that the devices hold."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    x = torch.arange(float(torch.Size(shape).numel())).view(shape).to(torch_xla.device())
    xs.mark_sharding(x, xs.Mesh(np.arange(devices), sizes, axes), spec)
    found = xla.sharding({"x": x}, title="A tensor")
    return found, [shard for shard, _ in torch_xla._XLAC._get_local_shards([x])[0]], x.cpu()


@pytest.mark.parametrize(
    ("shape", "axes", "sizes", "spec"),
    [
        ((8, 6), ("a",), (4,), ("a", None)),
        ((8, 6), ("a", "b"), (2, 2), ("b", "a")),
        ((8, 6), ("a", "b"), (2, 2), (("a", "b"), None)),
        ((6, 4), ("a",), (4,), ("a", None)),  # does not divide: two devices get fewer rows, or none
        ((8,), ("a",), (4,), (None,)),
    ],
    ids=str,
)
def test_says_what_devices_hold(shape, axes, sizes, spec):
    found, shards, whole = xla.launch(program, 4, shape, axes, sizes, spec, spmd=True, cores=4).results[0]
    for [part], shard in zip(found.by_device, shards, strict=True):
        assert part.whole == shape
        region = tuple(slice(a, a + n) for a, n in zip(part.start, part.shape, strict=True))
        held = tuple(slice(0, n) for n in part.shape)  # a shard is filled up where it does not divide
        assert torch.equal(shard[held], whole[region])


def several():
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.Mesh(np.arange(4), (4,), ("a",))
    layer = torch.nn.Linear(4, 8).to(device)
    xs.mark_sharding(layer.weight, mesh, ("a", None))
    x = torch.ones(2, 4).to(device)
    wrapped = xs.mark_sharding(torch.ones(8, 2).to(device), mesh, ("a", None))
    return xla.sharding(layer), xla.sharding({"x": x, "y": layer(x), "wrapped": wrapped})


def test_modules_and_names_and_what_xla_decided():
    layer, named = xla.launch(several, spmd=True, cores=4).results[0]
    assert layer.by_device[1] == [Part("weight", (8, 4), (2, 0), (2, 4)), Part("bias", (8,), (0,), (8,))]
    assert [part.name for part in named.by_device[0]] == ["x", "y", "wrapped"]
    assert named.by_device[3][1] == Part("y", (2, 8), (0, 6), (2, 2))  # follows the weight
    assert named.by_device[3][2] == Part("wrapped", (8, 2), (6, 0), (2, 2))


def test_draws_itself_after_a_journey():
    found = xla.Sharding([[Part("w", (8, 2), (device, 0), (1, 2))] for device in range(8)], "A weight")
    arrived = pickle.loads(pickle.dumps(found))
    png, look = arrived._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert repr(arrived) == "A weight: each of 8 devices holds 12% of the numbers"
    assert look["alt"].startswith(repr(arrived))
    assert "device 7 [7:8, 0:2]" in look["alt"]
