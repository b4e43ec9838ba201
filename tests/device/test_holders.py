"""Who holds cards: real processes, and a made /proc."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphcache.device.holders import look_for_holders
from graphcache.device.nodes import CannotTellError
from tests.device.cards import give, made_process, process_with, root

KERNEL_THREAD = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0"

__all__ = ["root"]


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
from graphcache.device.holders import look_for_holders
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


def test_this_process_does_not_count_where_proc_has_another_number_for_it(root: Path) -> None:
    give(root, 1)
    script = f"""
from pathlib import Path
from graphcache.device.holders import look_for_holders
with open("{root}/npu1pe0"):
    print(look_for_holders(Path("{root}")).held)
"""
    inside = ["unshare", "--pid", "--fork"]
    try:
        subprocess.run([*inside, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to make a pid namespace")
    run = subprocess.run([*inside, sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "{}\n"


def test_card_1_is_not_held_by_who_holds_card_10(root: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    made_process(proc, 7, open_paths=(f"{root}/npu10pe0", "/dev/null", "socket:[1]", f"{root}2/npu1pe0"))
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text(f"proc {proc} proc rw 0 0\n")
    assert sorted(look_for_holders(root, proc).held) == [10]


def made_unreadable(proc: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """A process 7 whose files cannot be listed."""
    made_process(proc, 7)
    (proc / "self").mkdir()
    (proc / "self/mounts").write_text("")
    listdir = os.listdir

    def refuse(path: str | os.PathLike[str] = ".") -> list[str]:
        if str(path).endswith("/7/fd"):
            raise OSError(error, os.strerror(error))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)


def test_who_cannot_be_looked_at_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_unreadable(tmp_path / "proc", monkeypatch, errno.EACCES)
    look = look_for_holders(root, tmp_path / "proc")
    assert [str(holder) for holder in look.unreadable] == ["process 7 (made)"]


def test_what_is_no_lack_of_rights_is_not_called_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_unreadable(tmp_path / "proc", monkeypatch, errno.EMFILE)
    with pytest.raises(CannotTellError, match=r"process 7 \(made\): Too many open files"):
        look_for_holders(root, tmp_path / "proc")


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
