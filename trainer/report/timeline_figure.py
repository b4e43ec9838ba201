"""The timeline of a step as a figure: a bar a lane, what was measured above what was predicted, on one scale."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from graphcache.process.chrome_trace import Span
from trainer.report.figures import STYLE, WIDTH, svg_of

# Spans of one kind that are closer than this part of the step are drawn as one: a line is not thinner.
CLOSE = 1 / 1500


def step_timeline(spans: Sequence[Span]) -> str:
    """SVG of a step's trace; lanes with the calls inside other spans are left out."""
    shown = [span for span in spans if not span.lane.endswith(" calls")]
    groups = list(dict.fromkeys(span.group for span in shown))
    kinds = sorted({_kind(span) for span in shown})
    colors = {kind: f"C{number % 10}" for number, kind in enumerate(kinds)}
    end = max((span.start + span.secs for span in shown), default=1.0)
    lanes = {group: list(dict.fromkeys(s.lane for s in shown if s.group == group)) for group in groups}
    with mpl.rc_context(STYLE):
        heights = [1 + len(lanes[group]) for group in groups]
        figure = Figure(figsize=(WIDTH, 1.0 + 0.24 * sum(heights)))
        grid = figure.subplots(
            len(groups), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights, "hspace": 0.5}
        )
        for axes, group in zip(grid[:, 0], groups, strict=True):
            ours = [span for span in shown if span.group == group]
            _draw(axes, lanes[group], _merged(ours, end * CLOSE), colors)
            axes.set_title(textwrap.fill(group, 64), fontsize=9, loc="left")
        grid[-1, 0].set_xlabel("seconds")
        grid[-1, 0].set_xlim(0, end)
        handles = [Patch(color=colors[kind], label=kind) for kind in kinds]
        grid[-1, 0].legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=4, frameon=False, fontsize=8
        )
        return svg_of(figure)


def _draw(axes: Axes, lanes: Sequence[str], spans: Iterable[Span], colors: dict[str, str]) -> None:
    for span in spans:
        where = lanes.index(span.lane)
        axes.broken_barh([(span.start, span.secs)], (where - 0.4, 0.8), color=colors[_kind(span)], linewidth=0)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()


def _kind(span: Span) -> str:
    """`update` of `update model.layers.3`."""
    return span.name.split(" ")[0]


def _merged(spans: Sequence[Span], close: float) -> list[Span]:
    """Neighbours of one kind on one lane as one, where what is between them could not be seen."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.lane, span.start)):
        last = found[-1] if found else None
        if last and last.lane == span.lane and _kind(last) == _kind(span):
            gap = span.start - last.start - last.secs
            if gap <= close:
                end = max(last.start + last.secs, span.start + span.secs)
                found[-1] = replace(last, secs=end - last.start)
                continue
        found.append(span)
    return found
