"""What the commands print on stdout: one JSON object, or lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError
from graphcache.process.shown import bytes_text, printable
from graphcache.process.streams import report_warning
from trainer.checkpoint.pretrained import InputCheckpoint
from trainer.plan.calibration import Calibration
from trainer.preflight.cached_graphs import CachedGraphs
from trainer.preflight.preflight import Findings, process_bytes, steps_in_all
from trainer.record.report import steps_line
from trainer.record.say import data_lines, held_out_lines
from trainer.report.tables import Table, as_text
from trainer.selftest import DeviceResult, kept
from trainer.step.memory import DevicePlan


def show_summary(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """What a run came to."""
    if as_json:
        _print_json(facts)
        return
    _print_lines((name, f"{value:,.4f}" if isinstance(value, float) else str(value)) for name, value in facts.items())


def show_findings(findings: Findings, problem: GraphcacheError | None, *, as_json: bool) -> None:
    """What preflight found; `problem` is part of the JSON, and on its way to stderr otherwise."""
    warn(findings.checkpoint)
    if as_json:
        error = {} if problem is None else {"error": problem.as_json(), "exit_code": problem.exit_code}
        _print_json({**_as_json(findings), **error})
        return
    for line in [] if findings.choice is None else findings.choice.lines():
        print(f"device   {line}")
    if findings.kind == "furiosa" and findings.choice is not None and findings.graphs is not None:
        for device in findings.choice.devices:
            print(f"selftest {device.name}: {kept(findings.graphs, device.name)}")
    if findings.config.emulated_time is not None:
        print("device   times will be emulated")
    if findings.graphs is not None:
        ready = sum(item.entry is not None for item in findings.graphs.items)
        print(f"graphs   {ready} of {len(findings.graphs.items)} are in the cache at {findings.graphs.store.root}")
        warn_unproven(findings.graphs)
    if findings.memory is not None:
        for plan in findings.memory.devices:
            print(f"memory   {_memory_line(plan)}")
        if len(findings.memory.devices) > 1:
            print(f"step     layers are dealt to the devices in groups of {findings.memory.group_layers}")
        host, in_all = findings.memory.host_bytes, process_bytes(findings.memory, findings.kind)
        print(f"memory   host: {bytes_text(host)}, and {bytes_text(in_all)} in all in this machine's memory")
    if findings.load is not None:
        print(f"load     {findings.load:g}, and at most {findings.config.wait_for_load:g} is asked for")
    if findings.corpus is not None:
        for line in data_lines(findings.corpus.facts, findings.config.seq):
            print(line)
        if findings.held_out is not None:
            for line in held_out_lines(findings.held_out.facts, findings.corpus.facts, findings.config.seq):
                print(line)
        # With a problem it may be unknown where the run goes on.
        if findings.saved is not None or not findings.problems:
            print(steps_line(steps_in_all(findings.config, findings.corpus), findings.saved))


def warn(checkpoint: InputCheckpoint | None) -> None:
    """What should be known of the model's config.json, on stderr."""
    for notice in () if checkpoint is None else checkpoint.notices:
        report_warning("model-config", notice)


def warn_unproven(graphs: CachedGraphs | None) -> None:
    """Warns when some graphs are unproven: nobody has shown that they compute the right thing."""
    if graphs is not None and graphs.unproven:
        report_warning("unproven", f"{graphs.unproven_text()}; on a node with the compiler: {graphs.prove_command}")


def show_tested(result: DeviceResult, done: int, total: int) -> None:
    """One graph on one device, as it is found."""
    word = {True: "right", False: "WRONG", None: "not run"}[result.right]
    text = f"  {printable(result.text)}" if result.text else ""
    print(f"{word:<7}  {result.device}  {result.graph}  {result.secs:.2f} s{text}  ({done} of {total})", flush=True)


def show_selftest(found: Sequence[DeviceResult], *, as_json: bool) -> None:
    """How many were right on each device."""
    if as_json:
        _print_json({"results": [result.as_json() for result in found]})
        return
    for device in dict.fromkeys(result.device for result in found):
        ours = [result.right for result in found if result.device == device]
        print(f"selftest {device}: {ours.count(True)} of {len(ours)} graphs right")


def show_calibration(calibration: Calibration, path: Path, *, as_json: bool) -> None:
    """What was measured, by number of workers, and what was not."""
    if as_json:
        _print_json(calibration.as_json())
        return
    rows = tuple(
        (str(count), f"{1e9 * secs:.3f}", f"{count / secs / 1e9:.2f}")
        for count, secs in calibration.update_secs.items()
    )
    header = ("workers", "ns an element and worker", "G elements/s")
    print("\n".join(as_text(Table("AdamW on the host", header, rows, words=0))[1:]))
    for what in calibration.not_measured:
        print(f"not measured  {what}")
    print(f"written       {path}; take it: python -m trainer plan --from {path}")


def _as_json(findings: Findings) -> dict[str, Any]:
    return {
        "devices": [] if findings.choice is None else findings.choice.lines(),
        "graphs": [] if findings.graphs is None else findings.graphs.as_json(),
        "memory": None if findings.memory is None else findings.memory.as_json(),
        "host_load": findings.load,
        "data": None if findings.corpus is None else findings.corpus.facts.as_json(),
        "eval_data": None if findings.held_out is None else findings.held_out.facts.as_json(),
        "steps": None if findings.corpus is None else steps_in_all(findings.config, findings.corpus),
        "warnings": [] if findings.checkpoint is None else list(findings.checkpoint.notices),
        "resume_from": None if findings.saved is None else str(findings.saved.folder),
    }


def _memory_line(plan: DevicePlan) -> str:
    parts = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in plan.parts.items() if size)
    inputs = "; layers' inputs wait on the host" if plan.inputs_on_host else ""
    return f"device {plan.device}: {bytes_text(plan.total_bytes)} ({parts}){inputs}"


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))


def _print_lines(facts: Iterable[tuple[str, str]]) -> None:
    for name, value in facts:
        print(f"{name:<20} {value}")
