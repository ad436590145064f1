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
from tests.tables import like, rows

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


CARDS = """
kind    count  torch_xla  what the card says
v5e     8      2.9.0      ● native     8 … TPU v5e · torch_xla 2.9.0
v5p     1      none       ○ not here   1 … TPU v5p · this kernel has no
no TPU  1      none       ○ not here   none · torch_xla is not installed in this kernel
v5e     0      2.9.0      ◐ virtual    virtual cores of XLA's CPU client · torch_xla 2.9.0
"""


@pytest.mark.parametrize(("kind", "count", "version", "state", "says"), rows(CARDS))
def test_tpu_and_its_package(host, kind, count, version, state, says):
    host(kind, int(count), torch_tpu="", torch_xla=version.replace("none", ""))
    assert re.search(f"{state} +{like(says)}", repr(discover()))


# Of a machine with 8 cores and 64 GiB, 60 of them free: its files, and the cores and GiB left.
LIMITED = {
    "without limits": (
        """
        groups: 0::/
        cpu.max: max 100000
        memory.max: max
        """,
        (8, 64, 60),
    ),
    "with more than there is": (
        """
        groups: 0::/
        cpu.max: 1600000 100000
        memory.max: 128G
        """,
        (8, 64, 60),
    ),
    "cached file pages are given back when needed": (
        """
        groups: 0::/
        cpu.max: 150000 100000
        memory.max: 4G
        memory.current: 3G
        memory.stat: anon 1, inactive_file 1G, active_file 7
        """,
        (1.5, 4, 2),
    ),
    "version 2, in a group of a group, where the outer one has less left": (
        """
        groups: 0::/slurm/job
        slurm/job/cpu.max: 200000 100000
        slurm/cpu.max: max 100000
        slurm/job/memory.max: 4G
        slurm/job/memory.current: 1G
        slurm/memory.max: 8G
        slurm/memory.current: 6G
        """,
        (2, 4, 2),
    ),
    "version 1, in a group of a group, beside one of another controller": (
        """
        groups: 5:name=systemd:/other, 4:memory:/docker/a:b, 1:cpuacct,cpu:/docker, 0::/
        cpu/docker/cpu.cfs_quota_us: 200000
        cpu/docker/cpu.cfs_period_us: 100000
        memory/other/memory.limit_in_bytes: 1G
        memory/docker/a:b/memory.limit_in_bytes: 4G
        memory/docker/a:b/memory.usage_in_bytes: 3G
        memory/docker/a:b/memory.stat: inactive_file 0, total_inactive_file 1G
        memory/memory.limit_in_bytes: 9223372036854771712
        """,
        (2, 4, 2),
    ),
    "version 1 in a container, which has its group at the root": (
        """
        groups: 4:memory:/docker/id, 1:cpu,cpuacct:/docker/id
        cpu/cpu.cfs_quota_us: 200000
        cpu/cpu.cfs_period_us: 100000
        memory/memory.limit_in_bytes: 4G
        memory/memory.usage_in_bytes: 2G
        """,
        (2, 4, 2),
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_of_the_groups_that_a_process_is_in(name, monkeypatch, tmp_path):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    memory = SimpleNamespace(total=64 * GIB, available=60 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "groups")
    files, left = LIMITED[name]
    for line in re.sub(r"\b(\d+)G", lambda size: str(int(size[1]) * GIB), files).split("\n"):
        path, _, text = line.strip().partition(": ")
        if path:
            write(tmp_path, {path: text.replace(", ", "\n")})
    total, free = usable_memory()
    assert (usable_cores(), total / GIB, free / GIB) == left
    assert f" {left[0]} cores " in repr(discover())


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
