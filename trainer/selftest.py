"""The graphs of a run on its devices themselves: before a first run on a new card, driver or firmware.

The inputs are the first set of a proof's, the bounds are computed on the host (`graphcache.proof`). Needs no data and
no folder of a run; holds the devices while it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from graphcache.device.backend_name import POOL_BYTES
from graphcache.device.base import DeviceBackend
from graphcache.device.select import Choice, choose, open_devices
from graphcache.digest import checksum
from graphcache.errors import CorruptError, GraphcacheError, UsageError
from graphcache.graph import Graph
from graphcache.location import local_dir
from graphcache.plan import PlanItem
from graphcache.proof.check import METHOD, SEED, Judge, reference
from graphcache.store import records
from graphcache.store.files import write_file
from graphcache.store.reading import read_file
from trainer.checkpoint.pretrained import InputCheckpoint
from trainer.config import RunConfig
from trainer.preflight.cached_graphs import CachedGraphs, find_graphs

FORMAT = "graphcache-selftest-1"


@dataclass(frozen=True, kw_only=True)
class DeviceResult:
    """One graph on one device.

    right: None where it could not be run, or told
    text:  why it is not right, for people; empty when it is
    secs:  of load, copies and call
    """

    device: str
    graph: str
    key: str
    right: bool | None
    text: str
    secs: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Told = Callable[[DeviceResult, int, int], None]


def selftest(config: RunConfig, told: Told = lambda result, done, total: None) -> list[DeviceResult]:
    """One result for each graph of the run on each of its devices; `told` hears of each as it comes.

    Raises UsageError for the host, which runs functions and no artifacts; MissingGraphsError, CardError and whatever
    else keeps a run from its graphs and devices; UnknownOperatorError for a graph without a bound.
    """
    choice = choose(config.backend, fusion=config.fusion)
    if choice.kind == "cpu":
        raise UsageError("--backend cpu runs no artifacts, so there is nothing to test", hint="emulator, or a card")
    graphs = find_graphs(InputCheckpoint(config.model), config)
    graphs.entries()
    with ExitStack() as opened:
        devices = [opened.enter_context(closing(device)) for device in _open(choice, graphs, config)]
        found = list(_run(devices, graphs, told))
    _keep(graphs, found)
    return found


def _open(choice: Choice, graphs: CachedGraphs, config: RunConfig) -> list[DeviceBackend]:
    return open_devices(choice, graphs.artifact, fusion=config.fusion, pool_bytes=config.pool_bytes or POOL_BYTES)


def _run(devices: Sequence[DeviceBackend], graphs: CachedGraphs, told: Told) -> Iterator[DeviceResult]:
    # Parts of a step may share one artifact; the smallest comes first, so that what is broken shows soon.
    items = list({_key(item): item for item in graphs.items}.values())
    items.sort(key=lambda item: (sum(spec.elements for spec in item.made.args), item.made.name))
    done = 0
    for item in items:
        inputs, wanted = reference(item.made, SEED, 0)
        for device in devices:
            judge, started = Judge(), time.monotonic()
            try:
                got = _call(device, item.made, inputs)
            except GraphcacheError as error:
                result = _result(device, item, None, error.message, started)
            else:
                secs = time.monotonic() - started
                judge.add(0, got, wanted)
                found = judge.found()
                right = {"proven": True, "disproven": False}.get(found.state)
                result = _result(device, item, right, found.reason, started, secs)
            done += 1
            told(result, done, len(items) * len(devices))
            yield result


def _key(item: PlanItem) -> str:
    assert item.entry is not None
    return item.entry.key.digest


def _result(
    device: DeviceBackend, item: PlanItem, right: bool | None, text: str, started: float, secs: float | None = None
) -> DeviceResult:
    took = time.monotonic() - started if secs is None else secs
    return DeviceResult(
        device=device.name, graph=item.made.name, key=_key(item), right=right, text=text, secs=round(took, 3)
    )


def _call(device: DeviceBackend, graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of one call, on the host; nothing of it stays on the device."""
    loaded = device.load(graph)
    buffers = [device.upload(each, spec.name) for each, spec in zip(inputs, graph.args, strict=True)]
    try:
        results = device.call(loaded, buffers)
    finally:
        device.free(*buffers)
    return [device.take(result) for result in results]


def _keep(graphs: CachedGraphs, found: Sequence[DeviceResult]) -> None:
    """What each device gave, under its name, beside what else this machine remembers of the cache."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for device in {result.device for result in found}:
        path = _path(graphs, device)
        if path is not None:
            results = [result.as_json() for result in found if result.device == device]
            facts = {"device": device, "created": created, "method": METHOD, "seed": SEED, "results": results}
            write_file(path, records.seal(FORMAT, facts), replace=True)


def kept(graphs: CachedGraphs, device: str) -> str:
    """What the last self-test on this machine found on `device`, for people."""
    path = _path(graphs, device)
    try:
        found = None if path is None else records.unseal(FORMAT, read_file(path))
    except (OSError, CorruptError):
        found = None
    if found is None or found["device"] != device:
        return "none on this machine: python -m trainer selftest"
    keys = {result["key"] for result in found["results"] if result["right"]}
    ours = {item.entry.key.digest for item in graphs.items if item.entry is not None}
    return f"{len(ours & keys)} of {len(ours)} graphs were right on {found['created']}"


def _path(graphs: CachedGraphs, device: str) -> Path | None:
    folder = local_dir(graphs.store.root)
    return None if folder is None else folder / f"selftest-{checksum(device.encode())}.json"
