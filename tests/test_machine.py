"""What a machine has and which device is picked, on machines with 0 to 8 pretended accelerators and
in containers.
"""

import re
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.torch_version import TorchVersion

from course_utils import CourseError, DeviceError, launch, limits, machine
from course_utils.limits import usable_cores, usable_memory
from course_utils.machine import Device, discover, pick
from tests.files import write

GIB = 2**30


pytestmark = pytest.mark.usefixtures("gpus")


@pytest.mark.parametrize(("count", "ranks"), [(0, 4), (1, 4), (2, 2), (8, 8), (16, 8)])
def test_a_rank_on_each_of_several_accelerators_else_four_on_the_cpu(gpus, count, ranks):
    gpus(count)
    here = discover()
    assert here.ranks == ranks
    assert (f"{ranks} ranks on {ranks} GPUs; nccl" if count > 1 else "4 ranks ") in repr(here)


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_eight_gpus(gpus, kind):
    gpus(8, kind, current=3)
    here = discover()
    assert [device.name for device in here.devices] == ["cpu", *(f"{kind}:{i}" for i in range(8))]
    assert here.accelerators[3] == Device(f"{kind}:3", kind, "NVIDIA H200", 140 * GIB)
    assert f"8 \N{MULTIPLICATION SIGN} NVIDIA H200 · {kind}:0, {kind}:1, " in repr(here)
    for want in (None, kind, 3, f"{kind}:3", torch.device(kind, 3)):
        assert pick(want) == torch.device(kind, 3)
    assert pick(0) == torch.device(kind, 0)
    assert pick("cpu") == torch.device("cpu")


def test_apples_gpu_has_no_ranks(gpus, monkeypatch):
    gpus(1, "mps")
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4")
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * GIB)
    here = discover()
    assert here.accelerators == (Device("mps:0", "mps", "Apple M4", 10 * GIB),)
    assert pick() == pick("mps") == pick(0) == torch.device("mps", 0)
    assert here.ranks == 4
    assert here.runs(4).endswith("(MPS has no collectives between processes); gloo")
    assert pick(ranks=1).type == "cpu"


def test_a_rank_picks_its_own(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert pick() == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert pick() == torch.device("cpu"), "one of them would have no GPU: all are on the CPU"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert pick() == pick(ranks=2) == torch.device("cpu")


def test_what_is_not_there_is_said_with_what_is(gpus):
    assert [device.name for device in discover().devices] == ["cpu"]
    assert re.search(r"GPU +○ not here", repr(discover()))
    assert pick() == pick("cpu") == pick(torch.device("cpu")) == torch.device("cpu")
    assert pick("meta") == torch.device("meta")
    for want in ("cpu:0", torch.device("cpu", 0)):
        assert pick(want) == torch.device("cpu")
    for want in ("cuda:7", "cpu:1", "cuda", 0, -1, "gpu", ""):
        with pytest.raises(
            DeviceError, match=f'"{want}" is no device of this machine. It has cpu: ask for one of'
        ):
            pick(want)
    gpus(2)
    with pytest.raises(
        DeviceError, match=r'"2" is no .* It has cpu, cuda:0, cuda:1: ask .* or call pick\(\)'
    ):
        pick(2)


def test_a_broken_driver_is_a_note(gpus, monkeypatch):
    def fails(device):
        raise RuntimeError("CUDA driver initialization failed\nand more lines")

    gpus(1)
    monkeypatch.setattr(torch, "get_device_module", fails)
    here = discover()
    assert here.accelerators == ()
    assert (
        "note: the accelerator cannot be used: CUDA driver initialization failed\n"
        in repr(here) + "\n"
    )


@pytest.mark.parametrize(
    ("kind", "count", "xla", "row"),
    [
        ("v5e", 8, "2.9.0", "● native     8 \N{MULTIPLICATION SIGN} TPU v5e · torch_xla 2.9.0"),
        ("v5p", 1, "", "○ not here   1 \N{MULTIPLICATION SIGN} TPU v5p · this kernel has no"),
        ("no TPU", 1, "", "○ not here   none · torch_xla is not installed in this kernel"),
        ("v5e", 0, "2.9.0", "◐ virtual    virtual cores of XLA's CPU client · torch_xla 2.9.0"),
    ],
)
def test_tpu_and_its_package(host, kind, count, xla, row):
    host(kind, count, torch_tpu="", torch_xla=xla)
    assert row in repr(discover())


def test_a_containers_limits(monkeypatch, tmp_path):
    """On a machine with 8 cores and 64 GiB, 60 of them free."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=60 * GIB)
    )
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    write(tmp_path, {"groups": "0::/"})
    for cores, memory in (("1600000 100000", 128 * GIB), ("max 100000", "max")):
        write(tmp_path, {"cpu.max": cores, "memory.max": memory})
        assert (usable_cores(), usable_memory()) == (8, (64 * GIB, 60 * GIB))
    write(
        tmp_path,
        {
            "cpu.max": "150000 100000",
            "memory.max": 4 * GIB,
            "memory.current": 3 * GIB,
            "memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7",
        },
    )
    assert usable_cores() == 1.5
    assert usable_memory() == (4 * GIB, 2 * GIB), "cached file pages are given back when needed"
    assert re.search(r"CPU +● native +1\.5 cores of ", repr(discover()))


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        # version 2, in a group of a group, where the outer one has less left
        (
            "0::/slurm/job",
            {
                "slurm/job/cpu.max": "200000 100000",
                "slurm/cpu.max": "max 100000",
                "slurm/job/memory.max": 4 * GIB,
                "slurm/job/memory.current": GIB,
                "slurm/memory.max": 8 * GIB,
                "slurm/memory.current": 6 * GIB,
            },
        ),
        # version 1, in a group of a group, beside one of another controller
        (
            "5:name=systemd:/other\n4:memory:/docker/a:b\n1:cpuacct,cpu:/docker\n0::/",
            {
                "cpu/docker/cpu.cfs_quota_us": 200000,
                "cpu/docker/cpu.cfs_period_us": 100000,
                "memory/other/memory.limit_in_bytes": GIB,
                "memory/docker/a:b/memory.limit_in_bytes": 4 * GIB,
                "memory/docker/a:b/memory.usage_in_bytes": 3 * GIB,
                "memory/docker/a:b/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}",
                "memory/memory.limit_in_bytes": 2**63 - 4096,
            },
        ),
        # version 1 in a container, which has its group at the root
        (
            "4:memory:/docker/id\n1:cpu,cpuacct:/docker/id",
            {
                "cpu/cpu.cfs_quota_us": 200000,
                "cpu/cpu.cfs_period_us": 100000,
                "memory/memory.limit_in_bytes": 4 * GIB,
                "memory/memory.usage_in_bytes": 2 * GIB,
            },
        ),
    ],
)
def test_limits_of_the_groups_that_a_process_is_in(groups, files, monkeypatch, tmp_path):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    memory = SimpleNamespace(total=64 * GIB, available=60 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    write(tmp_path, {"groups": groups, **files})
    assert usable_cores() == 2
    assert usable_memory() == (4 * GIB, 2 * GIB)


@pytest.mark.parametrize("call", [discover, pick, lambda: launch(print)])
def test_a_torch_that_is_missing_or_too_old_is_said(call, monkeypatch):
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    with monkeypatch.context() as old:
        old.setattr(torch, "__version__", TorchVersion("2.8.0+cpu"))
        with pytest.raises(CourseError, match=r"PyTorch 2.9 or newer is needed, .* has 2.8.0\+cpu"):
            call()
    for version in ("2.9.0a0+git", "2.10.0", "3.0"):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        machine.check_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CourseError, match=r"has none: install it there"):
        machine.check_torch()
