"""Figures of a report as SVG, drawn by matplotlib without a display. Text stays text, so a reader can search it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trainer.report.runs import RecordedRun

# Inches: a phone shows 5 inches of SVG (360 points) at about its own size.
WIDTH, HEIGHT = 5.0, 2.8
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "graphcache",  # the same report is the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def loss_curves(runs: Sequence[RecordedRun]) -> str:
    """Loss (natural logarithm, a mean over label tokens) by step, and on held-out data where it was measured."""

    def draw(axes: Axes) -> None:
        _lines(axes, runs, "loss")
        evaluated = [(run, [r for r in run.steps if "eval_loss" in r]) for run in runs]
        for run, found in evaluated:
            if found:
                label = f"{run.label}, held out"
                axes.plot([r["step"] for r in found], [r["eval_loss"] for r in found], "s--", label=label, ms=3, lw=1)
        if any(found for _, found in evaluated):
            _legend_below(axes)

    return _figure("loss", draw)


def step_times(runs: Sequence[RecordedRun]) -> str:
    """Seconds of each step."""
    return _figure("seconds a step", lambda axes: _lines(axes, runs, "step_secs", zero=True))


def phases(runs: Sequence[RecordedRun]) -> str:
    """Where the main thread's time goes: mean seconds of each phase of a step, a bar a run."""

    def draw(axes: Axes) -> None:
        means = [_mean_phases(run) for run in runs]
        left = [0.0] * len(runs)
        for name in sorted({name for mean in means for name in mean}):
            widths = [mean.get(name, 0.0) for mean in means]
            axes.barh([run.label for run in runs], widths, left=left, label=name)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_xlabel("seconds a step")
        axes.invert_yaxis()
        _legend_below(axes)

    return _figure("", draw, height=1.6 + 0.4 * len(runs))


def device_memory(runs: Sequence[RecordedRun]) -> str:
    """The most bytes that each device has held, a bar a device."""

    def draw(axes: Axes) -> None:
        peaks = [(f"{run.label} {name}", size / 1e9) for run in runs for name, size in _peaks(run).items()]
        axes.barh([name for name, _ in peaks], [size for _, size in peaks])
        axes.set_xlabel("GB at the peak")
        axes.invert_yaxis()

    return _figure("", draw, height=1.0 + 0.35 * sum(len(_peaks(run)) for run in runs))


def _peaks(run: RecordedRun) -> dict[str, int]:
    return dict(run.steps[-1].get("device_peak_bytes", {}))


def _mean_phases(run: RecordedRun) -> dict[str, float]:
    names = {name for record in run.steps for name in record.get("phase_secs", {})}
    return {name: fmean(record.get("phase_secs", {}).get(name, 0.0) for record in run.steps) for name in names}


def _lines(axes: Axes, runs: Sequence[RecordedRun], field: str, *, zero: bool = False) -> None:
    for run in runs:
        marker = "o" if len(run.steps) == 1 else None
        axes.plot([r["step"] for r in run.steps], [r[field] for r in run.steps], label=run.label, lw=1, marker=marker)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if zero:
        axes.set_ylim(bottom=0)
    if len(runs) > 1:
        _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, frameon=False, fontsize=8)


def _figure(ylabel: str, draw: Callable[[Axes], None], *, height: float = HEIGHT) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_subplot()
        draw(axes)
        axes.set_ylabel(ylabel)
        return svg_of(figure)


def svg_of(figure: Figure) -> str:
    """The figure's element, for a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
