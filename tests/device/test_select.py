"""`--backend` to devices: each spelling, the library's index of each card, and refusals that say everything at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphcache.device import select
from graphcache.device.backend_name import BackendError, parse
from graphcache.device.guarded import GuardedBackend
from graphcache.device.holders import Holder
from graphcache.device.select import CardError, Choice, choose, open_devices
from tests.device.cards import give, made_process, process_with, root
from tests.device.example import no_artifacts
from trainer.device.cpu import CpuBackend

__all__ = ["root"]

Chooser = Callable[..., Choice]


@pytest.fixture
def on(root: Path, tmp_path: Path) -> Chooser:
    """Chooses among the cards in `root` on a machine with a driver and no other process."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mounts").write_text("")
    return lambda text, **others: choose(text, **{"root": root, "proc": proc, "driver": list, **others})


def indices(choice: Choice) -> dict[str, int]:
    return {device.name: device.index for device in choice.devices}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("cpu", ("cpu", ("0",))),
        ("cpu:2", ("cpu", ("0", "1"))),
        ("emulator", ("emulator", ("0",))),
        ("emulator:3", ("emulator", ("0", "1", "2"))),
        ("furiosa:0", ("furiosa", ("0",))),
        ("furiosa:auto", ("furiosa", ("auto",))),
        ("furiosa:auto,furiosa:auto", ("furiosa", ("auto", "auto"))),
        ("furiosa:13,furiosa:3", ("furiosa", ("13", "3"))),
    ],
)
def test_spellings(text: str, parsed: tuple[str, tuple[str, ...]]) -> None:
    assert parse(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cpu:0", "emulator:0", "emulator:-1", "furiosa", "furiosa:", "furiosa:01", "furiosa:1,3", "cpu,cpu",
     "emulator,furiosa:0", "furiosa:auto,", "furiosa:auto furiosa:auto", "Furiosa:0", "furiosa:1,furiosa:1"],
)  # fmt: skip
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match="--backend"):
        parse(text)


def test_auto_takes_assigned_cards_in_order(root: Path, on: Chooser) -> None:
    give(root, 5, 1, 3)
    assert indices(on("furiosa:auto,furiosa:auto")) == {"furiosa:1": 0, "furiosa:3": 1}


def test_auto_takes_none_that_is_named(root: Path, on: Chooser) -> None:
    give(root, 1, 3)
    assert indices(on("furiosa:auto,furiosa:1")) == {"furiosa:3": 1, "furiosa:1": 0}


def test_the_librarys_index_is_a_position_and_no_cards_number(root: Path, on: Chooser) -> None:
    give(root, 1, 3)
    assert indices(on("furiosa:3")) == {"furiosa:3": 1}


@pytest.mark.parametrize(("fusion", "index"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_at_a_smaller_fusion_each_card_is_several_devices(root: Path, on: Chooser, fusion: int, index: int) -> None:
    give(root, 1, 3)
    assert indices(on("furiosa:3", fusion=fusion)) == {"furiosa:3": index}


def test_a_device_of_two_cards_is_refused(root: Path, on: Chooser) -> None:
    give(root, 1, 3)
    with pytest.raises(CardError, match="--fusion 16"):
        on("furiosa:1", fusion=16)


def test_more_cards_than_assigned_are_refused(root: Path, on: Chooser) -> None:
    give(root, 1)
    with pytest.raises(CardError, match=r"2 cards are asked for, and 1 are assigned under .*: npu1"):
        on("furiosa:auto,furiosa:auto")


def test_a_card_that_is_not_assigned_is_refused_by_its_number(root: Path, on: Chooser) -> None:
    give(root, 1, 3)
    with pytest.raises(CardError, match=r"card 0 is not assigned under .*: npu1, npu3"):
        on("furiosa:0")


def test_a_held_card_is_an_error_and_not_passed_over(root: Path, tmp_path: Path, on: Chooser) -> None:
    give(root, 1, 3)
    made_process(tmp_path / "proc", 7, open_paths=(f"{root}/npu1pe0",))
    with pytest.raises(CardError, match=r"card 1 is held by process 7 \(made\)"):
        on("furiosa:auto")
    assert indices(on("furiosa:3")) == {"furiosa:3": 1}


def test_what_cannot_be_told_is_refused(root: Path, on: Chooser, monkeypatch: pytest.MonkeyPatch) -> None:
    give(root, 1)
    look = select.holders.Look({}, [Holder(pid, "other") for pid in range(1, 8)])
    monkeypatch.setattr(select.holders, "look_for_holders", lambda *_: look)
    with pytest.raises(CardError, match=r"cannot tell .* process 1 \(other\).* process 5 \(other\) and 2 more"):
        on("furiosa:auto")


def test_nodes_that_cannot_be_told_apart_are_refused(root: Path, on: Chooser) -> None:
    (root / "npu1,npu3").touch()
    with pytest.raises(CardError, match=r"cannot tell which card .*npu1,npu3"):
        on("furiosa:auto")


def test_all_that_is_missing_is_said_at_once(root: Path, tmp_path: Path, on: Chooser) -> None:
    give(root, 1)
    made_process(tmp_path / "proc", 7, open_paths=(f"{root}/npu1mgmt",))
    with pytest.raises(CardError) as caught:
        on("furiosa:auto,furiosa:0", driver=lambda: ["no driver", "no io_uring"])
    assert [problem.split(" ")[0:4] for problem in caught.value.problems] == [
        ["2", "cards", "are", "asked"],
        ["card", "0", "is", "not"],
        ["card", "1", "is", "held"],
        ["no", "driver"],
        ["no", "io_uring"],
    ]
    assert caught.value.exit_code == 2


def test_the_folder_of_nodes_can_be_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(root, 3)
    monkeypatch.setenv(select.VARIABLE, str(root))
    with pytest.raises(CardError, match=f"card 1 is not assigned under {root}: npu3"):
        choose("furiosa:1")


def test_a_machine_without_cards_says_so() -> None:
    with pytest.raises(CardError, match=r"1 cards are asked for, and 0 are assigned under .*: none"):
        choose("furiosa:auto", root=Path("/nowhere"), driver=list)


def test_the_choice_says_which_cards_why_and_what_was_found(root: Path, on: Chooser) -> None:
    give(root, 1, 3)
    lines = on("furiosa:auto,furiosa:3").lines()
    assert lines[0].startswith("furiosa:1  card 1, for auto, the next that is not named, number 1 of 2 assigned")
    assert lines[1].startswith("furiosa:3  card 3, named, number 2 of 2 assigned")
    assert lines[2] == f"assigned under {root}: npu1, npu3; no process holds those chosen"


def test_a_real_process_holds_a_card_too(root: Path) -> None:
    give(root, 1)
    with process_with(root / "npu1pe0-3", "file = open(sys.argv[1])") as pid, pytest.raises(CardError, match=str(pid)):
        choose("furiosa:auto", root=root, driver=list)


def test_the_host_needs_no_cards_and_no_vendor() -> None:
    choice = choose("cpu:2", root=Path("/nowhere"), driver=lambda: ["no driver"])
    devices = open_devices(choice, no_artifacts, cpu=CpuBackend)
    assert [device.name for device in devices] == ["cpu:0", "cpu:1"]
    assert all(isinstance(device, CpuBackend) for device in devices)
    with pytest.raises(BackendError, match="the kind cpu is the trainer's"):
        open_devices(choice, no_artifacts)


def test_emulated_cards_are_opened_with_their_pool() -> None:
    devices = open_devices(choose("emulator:2"), no_artifacts, pool_bytes=1000)
    assert [(device.name, device.pool_bytes) for device in devices] == [("emulator:0", 1000), ("emulator:1", 1000)]
    for device in devices:
        device.close()


def test_what_was_opened_before_an_error_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    close = GuardedBackend.close

    def closing(self: GuardedBackend) -> None:
        closed.append(self.name)
        close(self)

    opening = select._open

    def fail_second(kind: str, device: select.Device, *others: object) -> object:
        if device.name == "emulator:1":
            raise MemoryError
        return opening(kind, device, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(GuardedBackend, "close", closing)
    monkeypatch.setattr(select, "_open", fail_second)
    with pytest.raises(MemoryError):
        open_devices(choose("emulator:2"), no_artifacts)
    assert closed == ["emulator:0"]
