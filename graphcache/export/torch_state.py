"""torch's global state, which decides what graphs export to: a module that changes it would change others' programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphcache.errors import SpoiledError

# What each is, how it is read, and how it is put back.
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # None takes a default away, where setting the CPU would add one.
    "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "grad mode": (torch.is_grad_enabled, lambda on: torch._C._set_grad_enabled(on)),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
}


@contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Puts back what the block changes. Raises SpoiledError then, which says that `what` did; also where the block
    failed, since that leaves modules behind as well."""
    before = {name: read() for name, (read, _) in _STATE.items()}
    try:
        yield
    finally:
        changed = [name for name, (read, _) in _STATE.items() if read() != before[name]]
        for name in changed:
            _STATE[name][1](before[name])
        if changed:
            raise SpoiledError(
                f"{what} changes torch's {' and '.join(changed)} for the whole process, and with it what other graphs "
                "export to",
                hint="give each call its dtype and device, and use torch.no_grad() and the like as contexts",
            )
