"""`graphcache shapes`: a checkpoint's tensors, and which of its weights each catalog would use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cli.options import catalog_options, chosen_options, cli_command, json_option, model_argument, only_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache import catalog
from graphcache.errors import GraphcacheError
from graphcache.graph import Listing
from graphcache.header.table import TensorGroup, TensorTable, read_config, read_table
from graphcache.process.shown import bytes_text, count_text
from graphcache.process.streams import report_warning


@cli_command(
    "shapes",
    examples=(
        "graphcache shapes Llama-3.1-8B",
        "graphcache shapes model.safetensors --only adamw",
        "graphcache shapes model.safetensors.index.json --json",
    ),
)
@model_argument
@only_option
@catalog_options
@json_option
def command(model: Path, only: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show a checkpoint's tensors, from its headers only.

    Tensors of one dtype and shape are one line. Then, for each catalog: the graphs that it would list and the weights
    that would use them. No weights are read and nothing is compiled.
    """
    names = catalog.select(only)
    table = read_table(model)
    listings = _listings(names, table, read_config(model), chosen_options(names, options))
    for notice in table.notices:
        report_warning(notice.name, f"{notice.file}: {notice.fact}")
    if as_json:
        emit_json(_as_json(model, table, listings))
    else:
        _show(table, listings)


def _listings(
    names: Iterable[str], table: TensorTable, config: Mapping[str, Any] | None, options: catalog.CatalogOptions
) -> dict[str, Listing | GraphcacheError]:
    """What each catalog lists, or why it cannot (most often: it needs a config.json that is not there)."""
    listings: dict[str, Listing | GraphcacheError] = {}
    for name in names:
        try:
            listings[name] = catalog.list_one(name, table, config, options)
        except GraphcacheError as error:
            listings[name] = error
    return listings


def _by_shape(table: TensorTable) -> list[tuple[str, tuple[int, ...], list[TensorGroup]]]:
    """Groups of tensors under their dtype and shape, the largest first."""
    groups: dict[tuple[str, tuple[int, ...]], list[TensorGroup]] = defaultdict(list)
    for group in table.groups():
        groups[group.dtype, group.shape].append(group)
    rows = [(dtype, shape, members) for (dtype, shape), members in groups.items()]
    return sorted(rows, key=lambda row: (-row[2][0].size_bytes, row[0], row[1]))


def _show(table: TensorTable, listings: Mapping[str, Listing | GraphcacheError]) -> None:
    """The human form."""
    _show_tensors(table)
    for name, listing in listings.items():
        print(f"\ncatalog {name}")
        if isinstance(listing, GraphcacheError):
            print(f"  cannot list its graphs: {listing.message}{f' ({listing.hint})' if listing.hint else ''}")
        else:
            _show_uses(listing)
    print()
    emit_facts(
        [
            ("shards", count_text(len(table.shards))),
            ("header bytes read", count_text(table.header_bytes_read)),
            ("tensors", count_text(len(table))),
            ("parameters", count_text(table.elements)),
            ("bytes", f"{count_text(table.size_bytes)} ({bytes_text(table.size_bytes)})"),
        ]
    )


def _show_tensors(table: TensorTable) -> None:
    rows = []
    for dtype, shape, groups in _by_shape(table):
        count = sum(group.count for group in groups)
        names = ", ".join(group.label for group in groups)
        unknown = "" if groups[0].known else " (unknown dtype)"
        elements, size_bytes = groups[0].elements * count, groups[0].size_bytes * count
        rows.append(
            (str(list(shape)), dtype + unknown, names, str(count), count_text(elements), bytes_text(size_bytes))
        )
    emit_table(
        ("shape", "dtype", "names", "tensors", "parameters", "bytes"), rows, right=("tensors", "parameters", "bytes")
    )


def _show_uses(listing: Listing) -> None:
    graphs = len(listing.graphs)
    calls = sum(use.count * use.calls for use in listing.uses)
    emit_table(
        ("  graph", "used by", "places", "calls each"),
        [(f"  {use.graph}", use.what, str(use.count), str(use.calls)) for use in listing.uses],
        right=("places", "calls each"),
    )
    print(f"  {graphs} {'graph' if graphs == 1 else 'graphs'}, {count_text(calls)} calls a step")


def _as_json(model: Path, table: TensorTable, listings: Mapping[str, Listing | GraphcacheError]) -> dict[str, Any]:
    """The machine form of the same facts."""
    return {
        "model": str(model),
        "groups": [{**group.as_json(), "tensors": group.count} for group in table.groups()],
        "unknown_dtypes": {tensor.name: tensor.dtype for tensor in table.unknown},
        "catalogs": {name: _listing_json(listing) for name, listing in listings.items()},
        "notices": [{"name": n.name, "file": n.file, "fact": n.fact} for n in table.notices],
        "shards": [str(shard) for shard in table.shards],
        "header_bytes_read": table.header_bytes_read,
        "tensors": len(table),
        "parameters": table.elements,
        "size_bytes": table.size_bytes,
    }


def _listing_json(listing: Listing | GraphcacheError) -> dict[str, Any]:
    if isinstance(listing, GraphcacheError):
        return {"error": listing.as_json()}
    return {
        "graphs": [graph.as_json() for graph in listing.graphs],
        "uses": [use.as_json() for use in listing.uses],
    }
