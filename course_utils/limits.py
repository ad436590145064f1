"""How many cores and how much memory this process may use, its container's limits counted."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMORY = (  # version 2 and 1: the limit, what is used, and what of that the kernel gives back
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def usable_cores() -> float:
    """CPU cores this process may keep busy, by affinity and its container's quota: 2, or 1.5."""
    if hasattr(os, "sched_getaffinity"):
        cores = float(len(os.sched_getaffinity(0)))
    else:
        cores = float(os.cpu_count() or 1)
    for group in _groups("cpu"):
        # "150000 100000", or "max 100000"
        quota, _, period = text_of(group / "cpu.max").partition(" ")
        if not quota:  # version 1: 150000, or -1
            quota = text_of(group / "cpu.cfs_quota_us")
            period = text_of(group / "cpu.cfs_period_us")
        if quota.isdigit():
            cores = min(cores, int(quota) / int(period))
    return cores


def usable_memory() -> tuple[int, int]:
    """Bytes that this process and its children may have, by its container; those free now."""
    here = psutil.virtual_memory()
    memory, free = here.total, here.available
    for group in _groups("memory"):
        for name, usage, cache in MEMORY:
            limit = text_of(group / name)
            if not limit.isdigit() or int(limit) >= here.total:
                continue
            # The kernel gives cached file pages back before it calls memory short.
            statistics = dict(re.findall(r"(\w+) (\d+)", text_of(group / "memory.stat")))
            used = int(text_of(group / usage) or 0) - int(statistics.get(cache, 0))
            memory = min(memory, int(limit))
            free = min(free, max(0, int(limit) - used))
    return memory, free


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the groups that limit this process: its own, and those above.

    In a container its own may be there under the host's path only, and what is above is its own.
    """
    for line in text_of(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = CGROUP / controller if controllers else CGROUP  # of version 1, or 2
            own = Path(path).relative_to("/")
            yield from (root / group for group in (own, *own.parents))


def text_of(file: Path) -> str:
    """What the system says in this file; "" where it has none."""
    return file.read_text().strip() if file.is_file() else ""
