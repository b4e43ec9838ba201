"""What commands have in common: their class, which shows examples in its help, and shared options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphcache.errors import UsageError

if TYPE_CHECKING:
    from graphcache.catalog import CatalogOptions

TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
# What no compile takes.
MOST_SECS = 1e9

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose help ends with examples; tests parse each of them."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def cli_command(name: str, *, examples: Sequence[str], **kwargs: Any) -> Callable[[Callable[..., Any]], Command]:
    """Decorator: `click.command` with examples. The function may return its exit code (None is 0)."""
    return click.command(name, cls=Command, examples=examples, **kwargs)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")

cache_option = click.option(
    "--cache",
    metavar="DIR",
    help="The cache folder; else GRAPHCACHE_DIR, the config file, or graphcache under the XDG cache folder.",
)

remote_option = click.option(
    "--remote",
    "remotes",
    metavar="URL",
    multiple=True,
    help="Where to look for what the cache lacks: s3://, gs://, https://, or a shared folder. Several are asked in"
    " turn. Else GRAPHCACHE_REMOTE, several apart by spaces, or the config file.",
)

# Not `exists=True`: graphcache's own errors say more about a path that cannot be used.
PATH = click.Path(path_type=Path)

trust_option = click.option(
    "--trust",
    type=PATH,
    metavar="FILE",
    help="Use only what a key in this file has signed. Else GRAPHCACHE_TRUST or the config file names one.",
)

model_argument = click.argument("model", type=PATH)


def manifests_option(explained: str) -> Callable[[F], F]:
    """`--manifest FILE`, any number of them, as `manifests`."""
    return click.option("--manifest", "manifests", metavar="FILE", type=PATH, multiple=True, help=explained)


def _split_commas(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    return tuple(dict.fromkeys(names))


only_option = click.option(
    "--only",
    metavar="CATALOG",
    multiple=True,
    callback=_split_commas,
    help="A catalog of graphs; may be given several times, or as a,b. Default: all that are installed.",
)


def catalog_options(function: F) -> F:
    """The fields of `graphcache.catalog.CatalogOptions` as options; None where one is not given. `own`: texts by
    `catalog.option`."""
    # Here, since commands without these options need nothing of manifests.
    from graphcache.catalog import CatalogOptions
    from graphcache.manifest.manifest import DTYPES, OPTION_LIMIT

    size = click.IntRange(1, OPTION_LIMIT)
    helps: dict[str, tuple[Any, str]] = {
        "dtype": (click.Choice(DTYPES), "Of weights and activations; the trainer's --dtype."),
        "micro_batch": (size, "Sequences in one micro-batch; the trainer's --micro-batch."),
        "sequence": (size, "Tokens in one sequence; the trainer's --seq."),
        "tile_elements": (
            size,
            "Elements of one AdamW call, at most. For measuring: the trainer calls graphs of the default alone.",
        ),
    }
    function = click.option(
        "--set",
        "own",
        metavar="CATALOG.OPTION=VALUE",
        multiple=True,
        callback=_own,
        help="An option that one catalog has of its own; may be given several times.",
    )(function)
    # Not click's own defaults: what is not given may be a manifest's.
    for name, default in reversed(CatalogOptions().as_json().items()):
        kind, text = helps[name]
        function = click.option(f"--{name.replace('_', '-')}", type=kind, help=f"{text}  [default: {default}]")(
            function
        )
    return function


def _own(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`lora.rank=16` as a name and a text; the same name twice is an error."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        catalog, _, option = name.rpartition(".")
        if not equals or not catalog or not option.isidentifier() or name in found:
            raise click.BadParameter(
                f"{value!r} is not a new option and its value, such as lora.rank=16", ctx, parameter
            )
        found[name] = text
    return found


def chosen_options(
    names: Sequence[str], options: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> CatalogOptions:
    """What `catalog_options` gave, for these catalogs; of what was not given the defaults, such as a manifest's.

    Raises UsageError for an option of a catalog that is not among them, or that it does not have.
    """
    from graphcache.catalog import CatalogOptions, load
    from graphcache.own_options import one

    shared = given(**{name: options[name] for name in CatalogOptions().as_json()})
    ours = {
        name: each for name, each in (defaults or {}).items() if "." not in name or name.rpartition(".")[0] in names
    }
    own: dict[str, Any] = {}
    for place, text in options["own"].items():
        name, _, option = place.rpartition(".")
        if name not in names:
            raise UsageError(f"--set {place}: the catalog {name!r} is not among {', '.join(names)}", hint="see --only")
        own[place] = one(name, load(name), option, text)
    return CatalogOptions.from_json({**ours, **shared, **own})


class Positive(click.FloatRange):
    """A number above 0, and no more than `most`: not infinity, and not NaN, which no comparison refuses."""

    def __init__(self, most: float) -> None:
        super().__init__(min=0, max=most, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number", param, ctx) if math.isnan(found) else found


class Duration(click.ParamType):  # type: ignore[type-arg]
    """`90s`, `30m`, `2h`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        number, unit = (value[:-1], value[-1:]) if value[-1:] in TIME_UNITS else (value, "")
        try:
            secs = float(number) * TIME_UNITS[unit]
        except (KeyError, ValueError):
            secs = -1.0
        if not 0 < secs <= MOST_SECS:
            self.fail(f"{value!r} is no time like 90s, 30m or 2h", param, ctx)
        return secs


def sizes(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """`t=64` as a name and a number; the same name twice is an error."""
    found: dict[str, int] = {}
    for value in values:
        name, _, size = value.partition("=")
        if not name.isidentifier() or not size.isascii() or not size.isdigit() or name in found:
            raise click.BadParameter(f"{value!r} is not a new name and its size, such as t=64", ctx, parameter)
        found[name] = int(size)
    return found


def timeout_option(explained: str, *, most_secs: float, default_secs: float) -> Callable[[F], F]:
    """`--timeout SECONDS`, as `timeout_secs`."""
    return click.option(
        "--timeout",
        "timeout_secs",
        type=Positive(most=most_secs),
        default=default_secs,
        show_default=True,
        metavar="SECONDS",
        help=explained,
    )


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, for `CatalogOptions(**given(...))`: its defaults stand for the others."""
    return {name: value for name, value in options.items() if value is not None}
