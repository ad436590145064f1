"""The CPU cores and the memory this process may really use: affinity and cgroup limits counted, no torch needed.

`root` is where `/proc` and `/sys` are looked for; the tests point it at a folder of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def usable_cores(*, root: Path = ROOT) -> float:
    """CPU cores this process may keep busy: the machine's, cut down by its affinity mask and its cgroups' quotas."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):  # Linux; the mask also carries a cgroup's cpuset
        cores = min(cores, len(os.sched_getaffinity(0)))
    quotas = [quota for folder in _cgroups("cpu", root) if (quota := _cpu_quota(folder))]
    return float(min([cores, *quotas]))


def usable_memory(*, root: Path = ROOT) -> int:
    """Bytes of memory this process and its children may have together: the machine's, or a cgroup's limit below it."""
    limits = [limit for folder in _cgroups("memory", root) if (limit := _memory_limit(folder))]
    return min([psutil.virtual_memory().total, *limits])


def available_memory(*, root: Path = ROOT) -> int:
    """Bytes that can be had now without swapping: what the machine has free, or what is left below a cgroup's limit."""
    left = [psutil.virtual_memory().available]
    for folder in _cgroups("memory", root):
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        if limit := _memory_limit(folder):
            # The kernel gives cached file pages back before it calls memory short.
            left.append(max(0, limit - max(0, used - _cached(folder))))
    return min(left)


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders whose limits bind this process, innermost first: a limit set on any parent binds its children."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:  # version 2: one tree for all controllers, here or beside version 1's
            tops = [mount, mount / "unified"]
        elif controller in names.split(","):  # version 1: a tree per controller, several may share one
            tops = [mount / controller, mount / names]
        else:
            continue
        # In a container the path can be the host's: those folders are missing, and the mount itself is its own.
        inner = [part for part in path.split("/") if part not in ("", "..")]
        for top in tops:
            for depth in range(len(inner), -1, -1):
                folder = top.joinpath(*inner[:depth])
                if folder.is_dir():
                    yield folder


def _cpu_quota(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")  # version 2: "150000 100000", or "max 100000"
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None  # "max", -1 or no such file: no limit at this level


def _memory_limit(folder: Path) -> int | None:
    return _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")


def _cached(folder: Path) -> int:
    stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
