"""Where ranks run, on machines with 0 to 8 accelerators of several kinds: torch is only asked what there is."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_utils import CourseError, DeviceError, pick
from course_utils.ranks.placement import place


@pytest.fixture
def have(monkeypatch):
    """A machine with `count` accelerators of this kind, and the backends of `also` in its torch."""
    real = dist.is_backend_available

    def machine(kind, count, *also):
        here = torch.device(kind) if count else None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: here)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(dist, "is_backend_available", lambda name: name in also or real(name))

    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    return machine


def placed(ranks=None, device=None, backend=None, *, init_group=True):
    found = place(ranks, device, backend, init_group=init_group)
    return found.ranks, found.device, found.backend


@pytest.mark.parametrize("ranks", [None, 1, 2, 3, 4, 8])
@pytest.mark.parametrize(("kind", "library"), [("cuda", "nccl"), ("xpu", "xccl")])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 8])
def test_an_accelerator_each_or_the_cpu_for_all(have, count, kind, library, ranks):
    have(kind, count, library)
    wanted = ranks or (count if count > 1 else 4)
    own = 0 < wanted <= count
    assert placed(ranks) == (wanted, kind if own else "cpu", library if own else "gloo")
    assert pick(ranks=wanted).type == (kind if own else "cpu")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 8])
@pytest.mark.parametrize("others", [2, 3, 4, 8])
def test_a_baseline_runs_where_the_others_run(have, count, others):
    have("cuda", count, "nccl")
    assert placed(1, pick(ranks=others))[1] == placed(others)[1]


def test_ranks_that_run_on_the_cpu_see_no_accelerator(have):
    have("cuda", 2, "nccl")
    assert place(4, None, None, init_group=True).env["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in place(2, None, None, init_group=True).env


def test_mps_has_no_collectives(have):
    have("mps", 1)
    assert placed(1) == (1, "cpu", "gloo")
    assert pick(ranks=1).type == "cpu"


def test_sharing_only_where_gloo_can(have):
    have("cuda", 2, "nccl")
    assert placed(4, "cuda") == (4, "cuda", "gloo")
    with pytest.raises(CourseError, match=r'backend="nccl" needs one CUDA device a rank, and here 4 ranks would share'):
        placed(4, "cuda", "nccl")
    have("xpu", 2, "xccl")
    with pytest.raises(CourseError, match=r"only gloo lets ranks share one, which moves tensors of cpu and cuda"):
        placed(4, "xpu")


def test_any_backend_that_torch_has(have, monkeypatch):
    have("hpu", 4, "mine")
    monkeypatch.setattr(dist.Backend, "backend_list", [*dist.Backend.backend_list, "mine"])
    monkeypatch.setattr(dist.Backend, "backend_capability", dist.Backend.backend_capability | {"mine": ["hpu"]})
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "hpu", "mine")
    assert placed(4) == (4, "hpu", "mine")
    assert placed(4, "hpu", "mine") == (4, "hpu", "mine")
    assert placed(2, "cpu", "cpu:gloo") == (2, "cpu", "cpu:gloo")
    with pytest.raises(CourseError, match=r'backend="mine" moves tensors of hpu, and these ranks are on cpu: use '):
        placed(2, "cpu", "mine")


@pytest.mark.parametrize("backend", ["ncll", "", 5, "cpu-gloo", "cpu:nothing"])
def test_a_backend_that_is_not_there(have, backend):
    have("cuda", 0)
    with pytest.raises(CourseError, match=r"is not in this torch; it has gloo"):
        placed(2, "cpu", backend)


def test_no_group_no_backend(have):
    have("cuda", 1, "nccl")
    assert placed(4, "cuda", init_group=False) == (4, "cuda", None)


@pytest.mark.parametrize("device", ["cuda:1", "tpu", 3, torch.device("cuda", 1)])
def test_a_device_that_is_no_kind_of_device(have, device):
    have("cuda", 2, "nccl")
    with pytest.raises(DeviceError, match="device=") as caught:
        placed(2, device)
    assert str(device) in str(caught.value)
