"""A step's timeline: who is watched while it runs, and the file with what was measured and predicted side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from graphcache.device.base import DeviceBackend
from graphcache.process.chrome_trace import Span, trace_json
from trainer.optim.base import Optimizer
from trainer.plan.prediction import Prediction
from trainer.step.trace import StepTrace


@contextmanager
def observed(trace: StepTrace | None, devices: Sequence[DeviceBackend], optimizer: Optimizer) -> Iterator[None]:
    """Calls, copies and updates inside the block go to the trace, if there is one."""
    if trace is None:
        yield
        return
    for device in devices:
        device.observer = trace.add_call
    optimizer.observe(trace.add)
    try:
        yield
    finally:
        for device in devices:
            device.observer = None
        optimizer.observe(None)


def trace_text(trace: StepTrace, step: int, predictions: Sequence[Prediction]) -> str:
    """The file: `measured`, and `predicted` by the first of the predictions that tells anything."""
    spans = [replace(span, group=f"measured, step {step}") for span in trace.spans]
    for prediction in predictions:
        if prediction.timeline is not None:
            group = f"predicted: {prediction.basis}"
            spans += [Span(group, each.lane, each.name, each.start, each.secs) for each in prediction.timeline.spans]
            break
    return trace_json(sorted(spans, key=lambda span: (span.group, _in_order(span.lane), span.start)))


def _in_order(lane: str) -> tuple[int, str]:
    kinds = ("main", "device", "link", "worker")
    return kinds.index(lane.split()[0]), lane
