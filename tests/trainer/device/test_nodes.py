"""Cards by their nodes, and who holds them: on folders like /dev/rngd, with real processes, and with a made /proc."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
import time
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


def made_process(proc: Path, pid: int, *, open_paths: tuple[str, ...] = ()) -> None:
    """Of one thread, whose files are where those of the process are."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(PLAIN)
    (folder / "comm").write_text("made\n")
    (folder / "maps").write_text("")
    for i, path in enumerate(open_paths):
        (folder / "fd" / str(i)).symlink_to(path)
    (folder / "task").mkdir()
    (folder / "task" / str(pid)).symlink_to(folder)


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


@pytest.mark.parametrize("kind", ["link", "second name"])
@pytest.mark.parametrize(
    "code",
    [
        "file = open(sys.argv[1])",
        "fd = os.open(sys.argv[1], os.O_RDWR); area = mmap.mmap(fd, mmap.PAGESIZE); os.close(fd)",
    ],
    ids=["open", "mapped"],
)
def test_it_holds_it_under_another_name(root: Path, tmp_path: Path, kind: str, code: str) -> None:
    other = tmp_path / "elsewhere"
    other.write_bytes(bytes(mmap.PAGESIZE))
    if kind == "link":
        (root / "npu1pe0").symlink_to(other)
    else:
        (root / "npu1pe0").hardlink_to(other)
    with process_with(other, code) as pid:
        held = look_for_holders(root).held
    assert {number: [h.pid for h in who] for number, who in held.items()} == {1: [pid]}


def test_it_holds_it_under_another_name_of_a_file_in_the_cards_folder(root: Path, tmp_path: Path) -> None:
    (root / "npu1/pe").mkdir(parents=True)
    (root / "npu1/pe/0").touch()
    (tmp_path / "elsewhere").hardlink_to(root / "npu1/pe/0")
    with process_with(tmp_path / "elsewhere", "file = open(sys.argv[1])") as pid:
        assert [h.pid for h in look_for_holders(root).held[1]] == [pid]


def test_a_device_is_its_number_whatever_its_inode(root: Path) -> None:
    """A node with the number of /dev/full, as a container has nodes of its own: who has that open has the card."""
    try:
        os.mknod(root / "npu1pe0", stat.S_IFCHR | 0o600, Path("/dev/full").stat().st_rdev)
    except PermissionError:
        pytest.skip("no right to make a device")
    with process_with(Path("/dev/full"), "file = open(sys.argv[1])") as pid:
        assert pid in [h.pid for h in look_for_holders(root).held[1]]


def test_a_node_that_cannot_be_looked_at_is_no_answer(root: Path, tmp_path: Path) -> None:
    (root / "npu1pe0").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CannotTellError, match="npu1pe0: No such file"):
        look_for_holders(root)


def test_a_thread_with_a_table_of_files_of_its_own_holds_it(root: Path) -> None:
    give(root, 1)
    code = """
import ctypes, threading
opened = threading.Event()
def hold():
    CLONE_FILES = 0x400
    assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
    fd = os.open(sys.argv[1], os.O_RDONLY)
    opened.set()
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
opened.wait()
"""
    with process_with(root / "npu1pe0", code) as pid:
        assert [h.pid for h in look_for_holders(root).held[1]] == [pid]


# The first thread ends alone, by the system call: what /proc shows of the process itself is then a zombie's.
FIRST_THREAD_ENDS = """
import ctypes, threading
def hold():
    {hold}
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({{"x86_64": 60, "aarch64": 93}}[os.uname().machine], 0)
"""


@pytest.mark.parametrize(
    "hold",
    [
        "file = open(sys.argv[1])",
        "fd = os.open(sys.argv[1], os.O_RDWR); area = mmap.mmap(fd, mmap.PAGESIZE); os.close(fd)",
    ],
    ids=["open", "mapped"],
)
def test_a_process_whose_first_thread_has_ended_holds_it(root: Path, hold: str) -> None:
    (root / "npu1bar4").write_bytes(bytes(mmap.PAGESIZE))
    with process_with(root / "npu1bar4", FIRST_THREAD_ENDS.format(hold=hold)) as pid:
        while ") Z" not in Path(f"/proc/{pid}/stat").read_text():
            time.sleep(0.01)
        assert [h.pid for h in look_for_holders(root).held[1]] == [pid]


def test_a_zombie_holds_nothing_and_is_no_reason_to_refuse() -> None:
    """As an ordinary user, who may not read a zombie's files. Of its own processes alone: others' it may not read."""
    script = """
import os, sys, tempfile
from pathlib import Path
from trainer.device.nodes import look_for_holders
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
zombie = os.fork()
if not zombie:
    os._exit(0)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
try:
    os.listdir(f"/proc/{zombie}/fd")
except PermissionError:
    pass
else:
    raise AssertionError("a zombie's files can be read")
with tempfile.TemporaryDirectory() as proc, tempfile.TemporaryDirectory() as root:
    for name in ("self", str(zombie)):
        Path(proc, name).symlink_to(f"/proc/{name}")
    Path(root, "npu1pe0").touch()
    print(look_for_holders(Path(root), Path(proc)))
os.waitpid(zombie, 0)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "Look(held={}, unreadable=[])\n"


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
