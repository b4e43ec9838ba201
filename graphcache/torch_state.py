"""torch's global state, which decides what graphs export to: a module that changes it would change others' programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# What each is, how it is read, and how it is put back.
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # None takes a default away, where setting the CPU would add one.
    "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "grad mode": (torch.is_grad_enabled, lambda on: torch._C._set_grad_enabled(on)),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
}
# Modules that were imported while state changed, as long-lived as sys.modules: nothing runs them a second time.
_CHANGED_ON_IMPORT: dict[str, list[str]] = {}


@contextmanager
def kept(module: str) -> Iterator[list[str]]:
    """Puts back what the block changes, and adds its names to the list that is given, in the end.

    So it does, for a block that needs `module`, with what was changed when that was imported in an earlier block.
    """
    before, modules = {name: read() for name, (read, _) in _STATE.items()}, set(sys.modules)
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (read, put_back) in _STATE.items():
            if read() != before[name]:
                put_back(before[name])
                changed.append(name)
        if changed:
            _CHANGED_ON_IMPORT.update({name: list(changed) for name in sys.modules.keys() - modules})
        changed += [name for name in _CHANGED_ON_IMPORT.get(module, ()) if name not in changed]
