"""CPU and memory limits, from made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphcache.process.limits import available_cpus, available_memory_bytes, resident_bytes

MEMINFO = "MemTotal:       25165824 kB\nMemFree: 1 kB\n"


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits_the_affinity_and_the_machine_count(tmp_path: Path) -> None:
    root = tree(tmp_path, {})
    assert available_cpus(root) == 16
    assert available_memory_bytes(root) == 25165824 * 1024


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1)]
)
def test_quota_of_cgroup_2(tmp_path: Path, quota: str, cpus: int) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "sys/fs/cgroup/pod/box/cpu.max": quota,
        "sys/fs/cgroup/pod/box/memory.max": "max",
    }
    assert available_cpus(tree(tmp_path, files)) == cpus
    assert available_memory_bytes(tmp_path) == 25165824 * 1024


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        "sys/fs/cgroup/pod/box/cpu.max": "800000 100000",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000",
        "sys/fs/cgroup/pod/box/memory.max": "4294967296",
        "sys/fs/cgroup/pod/memory.max": "2147483648",
    }
    assert available_cpus(tree(tmp_path, files)) == 3
    assert available_memory_bytes(tmp_path) == 2 << 30


def test_limits_of_cgroup_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "400000",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert available_cpus(tree(tmp_path, files)) == 4
    assert available_memory_bytes(tmp_path) == 1 << 30


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize("mount", ["cpu", "cpuacct,cpu", "cpu,cpuacct"])
def test_a_tree_of_cgroup_1_that_is_mounted_under_another_name(tmp_path: Path, controllers: str, mount: str) -> None:
    """Of a mount for two controllers the system makes a link for each of them."""
    files = {
        "proc/self/cgroup": f"2:{controllers}:/box\n",
        f"sys/fs/cgroup/{mount}/box/cpu.cfs_quota_us": "300000",
        f"sys/fs/cgroup/{mount}/box/cpu.cfs_period_us": "100000",
    }
    tree(tmp_path, files)
    if mount != "cpu":
        (tmp_path / "sys/fs/cgroup/cpu").symlink_to(mount)
    assert available_cpus(tmp_path) == 3


def test_a_container_sees_its_own_limits_at_the_mount(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod7/box\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu",
        "sys/fs/cgroup/cpu.max": "600000 100000",
    }
    assert available_cpus(tree(tmp_path, files)) == 6


def test_resident_memory_of_this_process() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0
