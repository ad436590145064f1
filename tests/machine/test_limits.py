"""The cores and the memory that may be used, from fake /proc and /sys."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from course_utils.machine.limits import available_memory, usable_cores, usable_memory
from tests.files import write

GIB = 2**30


@pytest.fixture
def machine_of(monkeypatch):
    def of(cores=8, memory=64 * GIB, free=60 * GIB):
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=memory, available=free))

    return of


def test_no_cgroup_at_all(tmp_path, machine_of):
    machine_of(cores=8)
    assert usable_cores(root=tmp_path) == 8.0
    assert usable_memory(root=tmp_path) == 64 * GIB
    assert available_memory(root=tmp_path) == 60 * GIB


def test_cgroup_v2_in_a_container(tmp_path, machine_of):
    machine_of()
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": 4 * GIB,
            "sys/fs/cgroup/memory.current": 3 * GIB,
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7",
        },
    )
    assert usable_cores(root=root) == 1.5
    assert usable_memory(root=root) == 4 * GIB
    assert available_memory(root=root) == 2 * GIB  # cached file pages are given back when needed


def test_cgroup_v2_the_tightest_parent_binds(tmp_path, machine_of):
    machine_of()
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/session.scope/job",
            "sys/fs/cgroup/user.slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/user.slice/session.scope/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/session.scope/job/cpu.max": "600000 100000",
            "sys/fs/cgroup/user.slice/session.scope/memory.max": 3 * GIB,
            "sys/fs/cgroup/user.slice/session.scope/job/memory.max": "max",
        },
    )
    assert usable_cores(root=root) == 2.0
    assert usable_memory(root=root) == 3 * GIB


def test_cgroup_v1(tmp_path, machine_of):
    machine_of()
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": 250000,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 2 * GIB,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/memory/docker/abc/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}",
            "sys/fs/cgroup/memory/docker/memory.limit_in_bytes": 9223372036854771712,
        },
    )
    assert usable_cores(root=root) == 2.5
    assert usable_memory(root=root) == 2 * GIB
    assert available_memory(root=root) == 1.5 * GIB


def test_cgroup_v1_whose_path_is_the_hosts(tmp_path, machine_of):
    machine_of()
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/kubepods/pod7/abc\n4:memory:/kubepods/pod7/abc",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 100000,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 5 * GIB,
        },
    )
    assert usable_cores(root=root) == 1.0
    assert usable_memory(root=root) == 5 * GIB


@pytest.mark.parametrize("quota", ["max 100000", "-1 100000", "0 100000", "banana", "", "100000 0"])
def test_no_quota_or_nonsense(tmp_path, machine_of, quota):
    machine_of()
    root = write(tmp_path, {"proc/self/cgroup": "0::/\nnonsense\n", "sys/fs/cgroup/cpu.max": quota})
    assert usable_cores(root=root) == 8.0


def test_affinity_mask(tmp_path, machine_of, monkeypatch):
    machine_of()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 6}, raising=False)
    assert usable_cores(root=tmp_path) == 3.0
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS, Windows
    assert usable_cores(root=tmp_path) == 8.0


def test_a_limit_above_the_machine_is_none(tmp_path, machine_of):
    machine_of(cores=2, memory=4 * GIB, free=GIB)
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "800000 100000",
            "sys/fs/cgroup/memory.max": 64 * GIB,
            "sys/fs/cgroup/memory.current": 0,
        },
    )
    assert (usable_cores(root=root), usable_memory(root=root), available_memory(root=root)) == (2.0, 4 * GIB, GIB)


def test_this_machine():
    assert 0 < usable_cores() <= os.cpu_count()
    assert 0 < available_memory() <= usable_memory() <= psutil.virtual_memory().total


def test_nothing_heavy_is_imported_for_the_limits():
    code = "import sys; from course_utils.machine import limits; limits.usable_cores(); limits.usable_memory()"
    code += "; assert not {'torch', 'torch_xla', 'numpy', 'IPython'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
