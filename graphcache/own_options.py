"""Options that one catalog has and others do not: keyword parameters of its function.

    def catalog(table, config, options, *, rank: int = 16) -> Listing

`--set lora.rank=8` gives the catalog `lora` its `rank`. Options enter keys only through the graphs that they lead to.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphcache.errors import UsageError

Value = int | float | str | bool
_TYPES: Mapping[str, type[Value]] = {"int": int, "float": float, "str": str, "bool": bool}
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True)
class Declared:
    """A keyword parameter of a catalog. default: `Parameter.empty` where it has to be given"""

    name: str
    type: type[Value] | None
    default: Any

    @property
    def text(self) -> str:
        """`rank (int, 16 by default)`"""
        kind = "a type that --set cannot give" if self.type is None else self.type.__name__
        required = self.default is inspect.Parameter.empty
        return f"{self.name} ({kind}, {'required' if required else f'{self.default} by default'})"


def declared(function: Callable[..., Any]) -> dict[str, Declared]:
    """The options that a catalog has of its own, by name."""
    parameters = inspect.signature(function).parameters.values()
    own = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return {each.name: Declared(each.name, _type(each), each.default) for each in own}


def typed(catalog: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Value]:
    """The options given to a catalog in its types: texts as a command line has them, or values as a manifest has them.

    Raises UsageError for a name that the catalog does not have, a value of another type, and one that is required and
    not given.
    """
    found = {name: one(catalog, function, name, value) for name, value in given.items()}
    for each in declared(function).values():
        if each.default is inspect.Parameter.empty and each.name not in found:
            raise UsageError(
                f"the catalog {catalog!r} needs its option {each.name!r}", hint=f"--set {catalog}.{each.name}=VALUE"
            )
    return found


def one(catalog: str, function: Callable[..., Any], name: str, value: Any) -> Value:
    """The value of one option in its type. Raises UsageError as `typed`."""
    known = declared(function)
    if name not in known:
        raise UsageError(f"the catalog {catalog!r} has no option {name!r}", hint=_hint(known.values()))
    return _value(f"{catalog}.{name}", known[name], value)


def _type(parameter: inspect.Parameter) -> type[Value] | None:
    """By its annotation, which is a text where the catalog's module postpones them; else by its default."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return _TYPES.get(type(parameter.default).__name__)
    return _TYPES.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _value(name: str, option: Declared, value: Any) -> Value:
    wrong = UsageError(f"{name} is {value!r}", hint=_hint([option]))
    if option.type is None:
        raise wrong
    if not isinstance(value, str):
        if type(value) is option.type:
            return value
        raise wrong
    try:
        found = _BOOLS[value.lower()] if option.type is bool else option.type(value)
    except (ValueError, KeyError):
        raise wrong from None
    if isinstance(found, float) and not math.isfinite(found):
        raise wrong
    return found


def _hint(options: Iterable[Declared]) -> str:
    return f"its options: {', '.join(each.text for each in options) or 'none'}"
