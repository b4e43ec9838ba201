"""Cards by their nodes, and who holds them: on folders like /dev/rngd, with real processes, and with a made /proc."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.device.nodes import CannotTellError, assigned_cards, card_number, look_for_holders

# What the vendor's device plugin gives a container for one card (its Kubernetes library, public).
NODES = ("mgmt", "dmar", "ch0", "ch7", "ch0r", *(f"pe{i}" for i in range(8)), "pe0-1", "pe2-3", "pe0-3", "pe4-7")
KERNEL_THREAD = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0"
PLAIN = "7 (a (b) c) S 1 7 7 0 -1 4194560 0 0 0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "rngd"
    folder.mkdir()
    return folder


def give(root: Path, *numbers: int) -> None:
    for number in numbers:
        for node in NODES:
            (root / f"npu{number}{node}").touch()


@contextmanager
def process_with(path: Path, code: str) -> Iterator[int]:
    """A process that runs `code` with `path` in argv, says so, and waits."""
    command = [sys.executable, "-c", f"import mmap, os, sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()"]
    with subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


def made_process(proc: Path, pid: int, *, stat: str = PLAIN, open_paths: tuple[str, ...] = (), maps: str = "") -> Path:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(stat)
    (folder / "comm").write_text("made\n")
    (folder / "maps").write_text(maps)
    for i, path in enumerate(open_paths):
        (folder / "fd" / str(i)).symlink_to(path)
    return folder


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("npu3", 3),
        ("npu13", 13),
        ("npu1pe0", 1),
        ("npu1pe0-3", 1),
        ("npu10ch7r", 10),
        ("npu0mgmt", 0),
        ("npu1,npu3", None),
        ("npu", None),
        ("npu1-3", None),
        ("xnpu1", None),
        ("npu1pe0,npu3pe0", None),
    ],
)
def test_a_nodes_name_gives_the_cards_number(name: str, number: int | None) -> None:
    assert card_number(name) == number


def test_cards_keep_the_hosts_numbers_gaps_and_all(root: Path) -> None:
    give(root, 3, 1, 10)
    assert [card.number for card in assigned_cards(root)] == [1, 3, 10]
    assert "npu1pe0-3" in assigned_cards(root)[0].nodes


def test_a_card_may_be_one_file_or_one_folder(root: Path) -> None:
    (root / "npu1").touch()
    (root / "npu3").mkdir()
    assert [card.number for card in assigned_cards(root)] == [1, 3]


def test_a_list_of_cards_is_not_card_13(root: Path) -> None:
    (root / "npu1,npu3").touch()
    with pytest.raises(CannotTellError, match="npu1,npu3"):
        assigned_cards(root)


def test_other_files_are_no_cards(root: Path) -> None:
    (root / "README").touch()
    assert assigned_cards(root) == ()


def test_a_machine_without_the_folder_has_no_cards(tmp_path: Path) -> None:
    assert assigned_cards(tmp_path / "nowhere") == ()


def test_a_file_in_the_folders_place_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rngd").touch()
    with pytest.raises(CannotTellError, match="Not a directory"):
        assigned_cards(tmp_path / "rngd")


def test_nobody_holds_what_is_not_open(root: Path) -> None:
    give(root, 1, 3)
    assert look_for_holders(root).held == {}


def test_a_process_that_has_a_node_open_holds_the_card(root: Path) -> None:
    give(root, 1, 3)
    with process_with(root / "npu3pe4-7", "file = open(sys.argv[1])") as pid:
        held = look_for_holders(root).held
    assert {number: [h.pid for h in who] for number, who in held.items()} == {3: [pid]}
    assert "python" in held[3][0].command


def test_it_holds_it_by_a_mapping_alone(root: Path) -> None:
    (root / "npu3bar4").write_bytes(bytes(mmap.PAGESIZE))
    code = "fd = os.open(sys.argv[1], os.O_RDWR); area = mmap.mmap(fd, mmap.PAGESIZE); os.close(fd)"
    with process_with(root / "npu3bar4", code) as pid:
        assert [h.pid for h in look_for_holders(root).held[3]] == [pid]


def test_it_holds_it_when_the_node_was_deleted(root: Path) -> None:
    give(root, 1)
    with process_with(root / "npu1pe0", "file = open(sys.argv[1]); os.unlink(sys.argv[1])") as pid:
        assert [h.pid for h in look_for_holders(root).held[1]] == [pid]


def test_it_holds_it_through_a_link_to_the_folder(root: Path, tmp_path: Path) -> None:
    give(root, 1)
    (tmp_path / "link").symlink_to(root)
    with process_with(root / "npu1pe0", "file = open(sys.argv[1])") as pid:
        assert [h.pid for h in look_for_holders(tmp_path / "link").held[1]] == [pid]


def test_this_process_does_not_count(root: Path) -> None:
    give(root, 1)
    with (root / "npu1pe0").open():
        assert look_for_holders(root).held == {}


def test_card_1_is_not_held_by_who_holds_card_10(root: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    made_process(proc, 7, open_paths=(f"{root}/npu10pe0", "/dev/null", "socket:[1]", f"{root}2/npu1pe0"))
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text(f"proc {proc} proc rw 0 0\n")
    assert sorted(look_for_holders(root, proc).held) == [10]


def test_who_cannot_be_looked_at_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "proc"
    made_process(proc, 7)
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text("")
    listdir = os.listdir

    def refuse(path: str | os.PathLike[str] = ".") -> list[str]:
        if str(path).endswith("/7/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    look = look_for_holders(root, proc)
    assert [str(holder) for holder in look.unreadable] == ["process 7 (made)"]


def test_the_kernels_own_threads_have_no_files_to_read(root: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    folder = proc / "2"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(KERNEL_THREAD)
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text("")
    look = look_for_holders(root, proc)
    assert (look.held, look.unreadable) == ({}, [])


def test_a_process_that_ends_meanwhile_holds_nothing(root: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "9").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text("")
    look = look_for_holders(root, proc)
    assert (look.held, look.unreadable) == ({}, [])


@pytest.mark.parametrize("options", ["rw,hidepid=2", "rw,nosuid,hidepid=invisible", "hidepid=1,rw"])
def test_hidden_processes_are_no_answer(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mounts").write_text(f"sysfs /sys sysfs rw 0 0\nproc {proc} proc {options} 0 0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotTellError, match="hidepid"):
        look_for_holders(root, proc)
