"""What `--backend` names: kinds and devices, as text. No torch."""

from __future__ import annotations

import re

from graphcache.errors import UsageError

AUTO = "auto"
# The DRAM pool of one RNGD card, which serves uploads and results together (reported on cards: 47.5 GiB of 48 GB).
POOL_BYTES = int(47.5 * 1024**3)
_COUNTED = re.compile(r"(cpu|emulator)(?::([1-9]\d{0,2}))?")
_CARD = re.compile(r"furiosa:(0|[1-9]\d*|auto)")


class BackendError(UsageError):
    """A `--backend` that names no device."""

    name = "backend"


def parse(text: str) -> tuple[str, tuple[str, ...]]:
    """The kind, and a name for each device: `("furiosa", ("3", "auto"))`, `("emulator", ("0", "1"))`.

    Raises BackendError.
    """
    counted = _COUNTED.fullmatch(text)
    if counted:
        return counted[1], tuple(str(i) for i in range(int(counted[2] or 1)))
    cards = [_CARD.fullmatch(part) for part in text.split(",")]
    names = tuple(match[1] for match in cards if match)
    if len(names) < len(cards):
        raise BackendError(
            f"--backend {text!r} names no device", hint="cpu, cpu:N, emulator, emulator:N, furiosa:N or furiosa:auto"
        )
    for name in names:
        if name != AUTO and names.count(name) > 1:
            raise BackendError(f"--backend {text!r} names card {name} twice", hint="a card is one device")
    return "furiosa", names
