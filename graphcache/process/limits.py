"""What this process may use of the machine: CPUs and memory, as affinity and cgroup limits allow.

`os.cpu_count()` is the machine's number. In a container with a quota of 2 CPUs on a node of 64, 64 threads would be
stopped for most of every period, so threads and workers are counted from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/")
# What cgroup v1 calls no memory limit is a number near 2^63.
_NO_LIMIT = 1 << 60


def available_cpus(root: Path = ROOT) -> int:
    """CPUs that this process may keep busy: the smallest of affinity and every cgroup quota above it, at least 1.

    A quota of 1.5 counts as 1: a second thread would be stopped half of the time.
    """
    limits = [len(os.sched_getaffinity(0)), *(int(quota) for quota in _cpu_quotas(root))]
    return max(1, min(limits))


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory that this process and its children may hold: the smallest of the machine's and every cgroup limit."""
    machine = _field_kb(_read(root / "proc/meminfo"), "MemTotal:") * 1024
    return min([machine or _NO_LIMIT, *_memory_limits(root)])


def resident_bytes(pid: int, root: Path = ROOT) -> int:
    """Memory that a process holds now; 0 when it is gone."""
    return _field_kb(_read(root / f"proc/{pid}/status"), "VmRSS:") * 1024


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, ""):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        yield from _ratio(quota, period)
    for folder in _folders(root, "cpu"):
        yield from _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _folders(root, ""):
        yield from _number(_read(folder / "memory.max"))
    for folder in _folders(root, "memory"):
        yield from _number(_read(folder / "memory.limit_in_bytes"))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and those above it. Version 2 (no controller) is one tree, version 1 a tree for each.

    In a container the path may be the host's, which is not there: then the mount's own folder is ours.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        for mount in _mounts(root, controllers, controller):
            own = mount / path.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_dir():
                    yield folder
                if folder == mount:
                    break


def _mounts(root: Path, controllers: str, controller: str) -> Iterable[Path]:
    """Where a tree may be mounted. `cpuacct,cpu` of version 1 may be the folder `cpu,cpuacct`, with `cpu` a link to it,
    or `cpu` alone.
    """
    folder = root / "sys/fs/cgroup"
    if controller:
        return dict.fromkeys((folder / controllers, folder / controller))
    return (folder if (folder / "cgroup.controllers").exists() else folder / "unified",)


def _ratio(quota: str, period: str) -> Iterator[float]:
    for quota_us in _number(quota):
        for period_us in _number(period):
            yield quota_us / period_us


def _number(text: str) -> Iterator[int]:
    """A limit; None when the text says that there is none (`max`, -1, nothing)."""
    if text.strip().isdigit() and 0 < int(text) < _NO_LIMIT:
        yield int(text)


def _field_kb(text: str, name: str) -> int:
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
