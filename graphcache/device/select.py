"""From `--backend` to devices: what was asked for, which cards that is, and why those.

cpu | cpu:N             the host, as one device or as N that split the layers
emulator | emulator:N   one emulated card, or N
furiosa:3               the card whose nodes are npu3
furiosa:auto            the first assigned card that is not named; `furiosa:auto,furiosa:auto` the first two
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from graphcache.device import holders, nodes
from graphcache.device.backend_name import AUTO, POOL_BYTES, BackendError, parse
from graphcache.device.base import DeviceBackend
from graphcache.device.card import CARD_PES, ArtifactSource
from graphcache.device.driver import driver_problems
from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.holders import Holder
from graphcache.device.nodes import AssignedCard, CannotTellError
from graphcache.errors import GraphcacheError
from graphcache.runtime.furiosa import NODES

# Another folder of nodes, for tests of whole commands. Every message names the folder that was looked into.
VARIABLE = "GRAPHCACHE_CARD_NODES"


class CardError(GraphcacheError):
    """The cards that were asked for cannot be taken. `problems` are all of the reasons, one sentence each."""

    name = "card"

    def __init__(self, problems: list[str], *, hint: str = "") -> None:
        super().__init__("; ".join(problems), hint=hint)
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Device:
    """One device of a run.

    index: the library's number, for a card: a position among the devices that it sees. Not the card's number.
    why:   why this one, for people
    """

    name: str
    why: str
    index: int = 0


@dataclass(frozen=True)
class Choice:
    """What `check` and `run` print, and `open_devices` opens. found: what was looked at, for people."""

    kind: str
    devices: tuple[Device, ...]
    found: str

    def lines(self) -> list[str]:
        return [f"{device.name}  {device.why}" for device in self.devices] + ([self.found] if self.found else [])


def choose(
    text: str,
    *,
    fusion: int = CARD_PES,
    root: Path | None = None,
    proc: Path = holders.PROC,
    driver: Callable[[], list[str]] = driver_problems,
) -> Choice:
    """The devices that `--backend text` means on this machine. Opens none.

    root:         where cards' nodes are: else $GRAPHCACHE_CARD_NODES, else /dev/rngd
    proc, driver: where to look for processes and drivers; others than the machine's own are for tests

    Raises BackendError, CardError with everything that is missing.
    """
    kind, names = parse(text)
    if kind != "furiosa":
        label = "the host" if kind == "cpu" else "an emulated card, on the host"
        devices = [Device(kind if len(names) == 1 else f"{kind}:{name}", label, int(name)) for name in names]
        return Choice(kind, tuple(devices), "")
    return _choose_cards(names, fusion, root or Path(os.environ.get(VARIABLE) or NODES), proc, driver)


def _choose_cards(
    names: tuple[str, ...], fusion: int, root: Path, proc: Path, driver: Callable[[], list[str]]
) -> Choice:
    problems: list[str] = []
    if fusion > CARD_PES:
        problems.append(f"--fusion {fusion} is more than a card's {CARD_PES} PEs, and a device is one card here")
    try:
        cards = nodes.assigned_cards(root)
        chosen = _match(names, cards, root, problems)
        _check_free(chosen, root, proc, problems)
    except CannotTellError as error:
        problems.append(f"{error.message} ({error.hint})" if error.hint else error.message)
    problems.extend(driver())
    if problems:
        raise CardError(problems, hint="a run takes cards that are assigned to this container and that nobody holds")
    # At fusion 4 the library sees each card as two devices; one is used, so that a pool is one card's memory.
    devices = [
        Device(f"furiosa:{card.number}", _why(name, card, cards), cards.index(card) * (CARD_PES // fusion))
        for name, card in zip(names, chosen, strict=True)
    ]
    return Choice("furiosa", tuple(devices), f"assigned under {root}: {_list(cards)}; no process holds those chosen")


def _match(
    names: tuple[str, ...], cards: tuple[AssignedCard, ...], root: Path, problems: list[str]
) -> list[AssignedCard]:
    """The card of each name, as far as there is one; what is missing goes into `problems`."""
    if len(names) > len(cards):
        problems.append(f"{len(names)} cards are asked for, and {len(cards)} are assigned under {root}: {_list(cards)}")
    by_number = {str(card.number): card for card in cards}
    missing = [name for name in names if name != AUTO and name not in by_number]
    problems.extend(f"card {name} is not assigned under {root}: {_list(cards)}" for name in missing)
    rest = iter([card for card in cards if str(card.number) not in names])
    found = [next(rest, None) if name == AUTO else by_number.get(name) for name in names]
    return [card for card in found if card is not None]


def _check_free(chosen: list[AssignedCard], root: Path, proc: Path, problems: list[str]) -> None:
    if not chosen:
        return
    look = holders.look_for_holders(root, proc)
    for card in chosen:
        if card.number in look.held:
            problems.append(f"card {card.number} is held by {_name(look.held[card.number])}")
    if look.unreadable:
        problems.append(
            f"cannot tell whether a card is held: no right to see the open files of {_name(look.unreadable)}; "
            "run as the user that owns them, or as root with CAP_SYS_PTRACE"
        )


def _name(who: list[Holder], most: int = 5) -> str:
    more = f" and {len(who) - most} more" if len(who) > most else ""
    return ", ".join(str(holder) for holder in who[:most]) + more


def _why(name: str, card: AssignedCard, cards: tuple[AssignedCard, ...]) -> str:
    place = f"number {cards.index(card) + 1} of {len(cards)} assigned"
    return f"card {card.number}, {'for auto, the next that is not named' if name == AUTO else 'named'}, {place}"


def _list(cards: tuple[AssignedCard, ...]) -> str:
    return ", ".join(f"npu{card.number}" for card in cards) or "none"


def open_devices(
    choice: Choice,
    artifact_of: ArtifactSource,
    *,
    fusion: int = CARD_PES,
    pool_bytes: int = POOL_BYTES,
    eager_catalogs: Collection[str] = (),
    timing: EmulatedTime | None = None,
    cpu: Callable[[str], DeviceBackend] | None = None,
) -> list[DeviceBackend]:
    """The devices of a choice, open. From now on a compile is an error, unless they are all the host.

    artifact_of:    gives a graph's artifact; the cpu needs none
    eager_catalogs: emulator only, see `EmulatedCard`; so is `timing`
    cpu:            makes the backend of the kind `cpu`, by its name: the trainer has one

    Raises ToolchainError, FusionError, BackendError for a `cpu` that the caller has none of. What was opened before an
    error is closed.
    """
    if choice.kind == "cpu" and cpu is None:
        raise BackendError(
            "the kind cpu is the trainer's: it runs the graphs' functions, not their artifacts",
            hint="emulator runs artifacts on the host",
        )
    with ExitStack() as opened:
        devices: list[DeviceBackend] = []
        for device in choice.devices:
            if choice.kind == "cpu" and cpu is not None:
                backend = cpu(device.name)
            else:
                backend = _open(choice.kind, device, artifact_of, fusion, pool_bytes, eager_catalogs, timing)
            opened.callback(backend.close)
            devices.append(backend)
        opened.pop_all()
        return devices


def _open(
    kind: str,
    device: Device,
    artifact_of: ArtifactSource,
    fusion: int,
    pool_bytes: int,
    eager_catalogs: Collection[str],
    timing: EmulatedTime | None,
) -> DeviceBackend:
    # Imported here: a run on the host loads nothing of the vendor's.
    from graphcache.device.guarded import GuardedBackend

    if kind == "emulator":
        from graphcache.device.emulator import EmulatedCard

        return GuardedBackend(
            EmulatedCard(
                artifact_of,
                name=device.name,
                fusion=fusion,
                pool_bytes=pool_bytes,
                eager_catalogs=eager_catalogs,
                timing=timing,
            )
        )
    from graphcache.device.furiosa import FuriosaCard

    return GuardedBackend(
        FuriosaCard(artifact_of, name=device.name, index=device.index, fusion=fusion, pool_bytes=pool_bytes)
    )
