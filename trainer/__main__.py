"""`python -m trainer`: the command line. Its exit codes:

0  the run is done, or has nothing to do
2  an error: settings, data, checkpoint, memory, a loss that is not finite
3  graphs that the run needs are missing from the cache
130, 143  ended by SIGINT or SIGTERM: in training after a step and its checkpoint
141  the reader of the output has gone
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from graphcache.process.command import run_command_line
from trainer.config import DTYPES, SCHEDULES, ConfigError, RunConfig
from trainer.preflight.host_load import parse_wait

F = TypeVar("F", bound=Callable[..., Any])


def _betas(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[float, float]:
    try:
        beta1, beta2 = (float(part) for part in value.split(","))
    except ValueError as error:
        raise ConfigError(f"--betas is {value!r}", hint="it is two numbers: --betas 0.9,0.999") from error
    return beta1, beta2


def _wait(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    return parse_wait(value)


def _run_options(function: F) -> F:
    """The settings of a run, in the order of the help. Their values are checked by RunConfig alone."""
    path, default = click.Path(path_type=Path), RunConfig(model=Path(), data=Path(), out=Path())
    betas = f"{default.beta1},{default.beta2}"
    options = (
        click.option("--model", type=path, required=True, help="Checkpoint folder: Llama or Qwen2, safetensors."),
        click.option("--data", type=path, required=True, help="Text, or records (JSONL, JSON, Parquet)."),
        click.option(
            "--ignore-fields",
            metavar="A,B",
            default="",
            show_default=False,
            help="Fields of records that are not read.",
        ),
        click.option("--out", type=path, required=True, help="The run's folder: records and checkpoints."),
        click.option("--backend", default=default.backend, help="cpu, emulator[:N], furiosa:0, furiosa:auto[,...]."),
        click.option("--resident-layers", type=int, default=default.resident_layers, help="On each device."),
        click.option("--update-workers", type=int, default=default.update_workers, help="Threads that update weights."),
        click.option("--steps", type=int, help="Optimizer steps in all. Default: one pass over the data."),
        click.option("--seq", type=int, default=default.seq, help="Tokens in a sequence."),
        click.option("--accum", type=int, default=default.accum, help="Micro-batches in a step."),
        click.option("--micro-batch", type=int, default=default.micro_batch, help="Sequences in a micro-batch."),
        click.option("--lr", type=float, default=default.lr, help="Learning rate at its highest."),
        click.option("--betas", callback=_betas, default=betas, help="AdamW's two."),
        click.option("--eps", type=float, default=default.eps, help="AdamW's."),
        click.option("--weight-decay", type=float, default=default.weight_decay, help="On matrices only."),
        click.option(
            "--schedule", type=click.Choice(SCHEDULES), default=default.schedule, help="Of the learning rate."
        ),
        click.option("--warmup-steps", type=int, default=default.warmup_steps, help="Steps up to --lr."),
        click.option("--clip-norm", type=float, help="Holds updates back until the norm of all gradients is known."),
        click.option("--dtype", type=click.Choice(DTYPES), default=default.dtype, help="Of weights and activations."),
        click.option(
            "--document-mask/--no-document-mask",
            default=None,
            help="Documents of a sequence do not see each other. Default: where --micro-batch is 1.",
        ),
        click.option("--seed", type=int, default=default.seed, help="Of the order of the data."),
        click.option("--save-every", type=int, help="Steps between checkpoints. Default: one at the end."),
        click.option("--keep", type=int, default=default.keep, help="Checkpoints that are kept."),
        click.option("--eval-data", type=path, metavar="FILE", help="Held-out data, whose loss is measured."),
        click.option("--eval-every", type=int, help="Steps between evaluations. Default: one at the end."),
        click.option("--best", is_flag=True, help="Also save and keep the checkpoint with the lowest held-out loss."),
        click.option("--resume", is_flag=True, help="Go on from the newest complete checkpoint in --out."),
        click.option("--cache", metavar="DIR", help="The cache of graphs; else GRAPHCACHE_DIR, else the XDG folder."),
        click.option(
            "--remote",
            metavar="URL",
            multiple=True,
            help="Where to look for missing graphs; else GRAPHCACHE_REMOTE.",
        ),
        click.option(
            "--trust", type=path, help="Take only graphs that a key in this file signed; else GRAPHCACHE_TRUST."
        ),
        click.option("--fusion", type=int, default=default.fusion, help="PEs that the graphs are compiled for."),
        click.option("--require-proof", is_flag=True, help="Refuse graphs that are not proven, instead of a warning."),
        click.option("--eager-layers", is_flag=True, help="Emulator: only the optimizer's graphs are from the cache."),
        click.option("--pool-gib", type=float, help="Emulator: the card's memory. Default: 47.5."),
        click.option(
            "--emulated-time", type=float, help="Emulator: calls take their estimated device time, times this."
        ),
        click.option("--emulated-link", type=float, default=default.emulated_link, help="With it: GB/s of copies."),
        click.option("--no-arithmetic", is_flag=True, help="With it: nothing is computed, every result is 1."),
        click.option("--wait-for-load", type=float, metavar="LOAD", help="Begin when the host's load is this or less."),
        click.option(
            "--wait", "wait_secs", callback=_wait, default="1h", help="Longest wait for that load: 90s, 30m, 1h."
        ),
        click.option("--tensorboard", type=path, metavar="DIR", help="Write TensorBoard's event files there."),
        click.option(
            "--trace", type=path, metavar="FILE", help="Write a step's timeline for ui.perfetto.dev there too."
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _config(betas: tuple[float, float], settings: dict[str, Any]) -> RunConfig:
    return RunConfig(beta1=betas[0], beta2=betas[1], **settings)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def group() -> None:
    """Fine-tune a Llama- or Qwen2-type checkpoint from cached graphs. Never compiles."""


@group.command("run")
@_run_options
def run_command(as_json: bool, betas: tuple[float, float], **settings: Any) -> None:
    """Train. Refuses to start when a graph, memory or a card is missing."""
    config = _config(betas, settings)
    # Imported here: torch is not needed to refuse a wrong setting, or for --help.
    from trainer.run.start import run

    summary = run(config)
    from trainer.run.show import show_summary

    show_summary(summary, as_json=as_json)


@group.command("data")
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Checkpoint folder, for its tokenizer.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Text, or records (JSONL, JSON, Parquet).")
@click.option(
    "--ignore-fields", metavar="A,B", default="", show_default=False, help="Fields of records not to be read."
)
@click.option(
    "--seq", type=int, default=RunConfig(model=Path(), data=Path(), out=Path()).seq, help="Tokens in a sequence."
)
@click.option("--show", type=int, default=3, help="How many documents are printed.")
@click.option("--cache", metavar="DIR", help="Where tokens are kept: as for `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def data_command(as_json: bool, show: int, **settings: Any) -> None:
    """Print documents as they are trained: what counts in colour (in [[ ]] where there is none), where they are cut,
    what is left out and why. Look at it before a run.

    \b
    python -m trainer data --model DIR --data FILE
    python -m trainer data --model DIR --data FILE --show 20 | less
    """
    if show < 0:
        raise ConfigError(f"--show is {show}, and must be 0 or more")
    config = RunConfig(out=Path(), **settings)  # checks the settings
    from trainer.data.errors import DataError
    from trainer.data.look import look
    from trainer.data.make_tokens import without_torch
    from trainer.record.say import say
    from trainer.run.show_data import show_look

    for path, name in ((config.model, "model"), (config.data, "data")):
        if not path.exists():
            raise DataError(f"--{name} {path}: there is no such file or folder")
    folder = config.model if config.model.is_dir() else config.model.parent
    without_torch()
    found = look(
        config.data, folder, seq=config.seq, show=show, ignored=config.ignored_fields, cache=config.cache, say=say
    )
    show_look(found, config.seq, as_json=as_json)


@group.command("check")
@_run_options
def check_command(as_json: bool, betas: tuple[float, float], **settings: Any) -> int:
    """Say what a run would need: graphs, memory, cards. Takes no card, and exits as the run would."""
    config = _config(betas, settings)
    from trainer.data.ahead import tokens_ahead

    tokens = tokens_ahead(config, "trainer.preflight.preflight")
    from trainer.preflight.preflight import Findings
    from trainer.run.show import show_findings

    findings = Findings(config, tokens)
    problem = findings.problem()
    show_findings(findings, problem, as_json=as_json)
    if problem is not None and not as_json:
        raise problem
    return 0 if problem is None else problem.exit_code


@group.command("plan")
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Checkpoint folder, or a manifest.")
@click.option("--backend", default="furiosa:auto", help="The most devices that there may be.")
@click.option(
    "--from",
    "sources",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="A RUN, a manifest or a calibration to take costs from.",
)
@click.option("--seq", type=int, default=512, help="Tokens in a sequence.")
@click.option("--micro-batch", type=int, default=1, help="Sequences in a micro-batch.")
@click.option("--accum", type=int, default=4, help="Micro-batches in a step.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", help="Of weights and activations.")
@click.option("--update-workers", type=int, default=4, help="Threads that update weights.")
@click.option("--clip-norm", type=float, help="Holds updates back until the norm of all gradients is known.")
@click.option("--pool-gib", type=float, help="Emulator: the card's memory. Default: 47.5.")
@click.option("--host-gib", type=click.FloatRange(0, min_open=True), help="The host's memory. Default: this machine's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(as_json: bool, sources: tuple[Path, ...], host_gib: float | None, **settings: Any) -> int:
    """Say what fits and what a step takes for each number of resident layers, and which run to start.

    Reads headers only: no card, no graphs. Exit code 1 when nothing fits.

    \b
    Examples:
      python -m trainer plan --model DIR --backend furiosa:auto,furiosa:auto
      python -m trainer plan --model DIR --from RUN --accum 8
      python -m trainer plan --model DIR --from cache_manifests/llama-3.1-8b.json --from calibration.json
      python -m trainer plan --model cache_manifests/llama-3.1-8b.json --from cache_manifests/llama-3.1-8b.json
    """
    from trainer.plan.command import plan, show

    config = RunConfig(data=Path("FILE"), out=Path("RUN"), **settings)
    return show(plan(config, sources, host_gib), config, as_json=as_json)


@group.command("calibrate")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The JSON file to write.")
@click.option("--backend", default="cpu", help="Device that copies go to; a card is taken while it measures.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", help="Of gradients and weights.")
@click.option("--update-workers", type=click.IntRange(1, 1024), default=4, help="The most threads that update weights.")
@click.option("--secs", type=click.FloatRange(1, 600), default=20.0, help="How long it measures, about.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object.")
def calibrate_command(run: Path | None, out: Path, as_json: bool, **settings: Any) -> None:
    """Measure this host's copies and AdamW, with the code of a run, under the load that there is. With RUN, the --out
    of a run, also take over its device time by pass and graph.

    \b
    Examples:
      python -m trainer calibrate --out host.json
      python -m trainer calibrate RUN --out calibration.json --update-workers 8
      python -m trainer plan --model DIR --from calibration.json
    """
    from trainer.calibrate import calibrate
    from trainer.plan.calibration import write
    from trainer.record.say import say
    from trainer.run.show import show_calibration

    found = calibrate(run, **settings, say=say)
    write(found, out)
    show_calibration(found, out, as_json=as_json)


@group.command("selftest")
@click.option("--model", type=click.Path(path_type=Path), required=True, help="The checkpoint of the runs to come.")
@click.option("--backend", required=True, help="emulator[:N], furiosa:0, furiosa:auto[,...].")
@click.option("--seq", type=int, default=512, help="Tokens in a sequence.")
@click.option("--micro-batch", type=int, default=1, help="Sequences in a micro-batch.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", help="Of weights and activations.")
@click.option("--cache", metavar="DIR", help="The cache of graphs; else GRAPHCACHE_DIR, else the XDG folder.")
@click.option("--fusion", type=int, default=8, help="PEs that the graphs are compiled for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def selftest_command(as_json: bool, **settings: Any) -> int:
    """Run a run's graphs on its devices, against bounds computed on the host. Exit code 1 when one is wrong.

    \b
    For a new card, driver or firmware, before the first run.
    Examples:
      python -m trainer selftest --model DIR --backend furiosa:auto
      python -m trainer selftest --model DIR --backend emulator:2 --seq 64 --json
    """
    # With resident layers all graphs that a run can call are among its own; it has no data and no folder.
    config = RunConfig(data=Path(), out=Path(), resident_layers=1, **settings)
    from trainer.run.show import show_selftest, show_tested
    from trainer.selftest import selftest

    found = selftest(config) if as_json else selftest(config, show_tested)
    show_selftest(found, as_json=as_json)
    return 0 if all(result.right for result in found) else 1


@group.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ranges", metavar="1-25,26-50", help="Ranges of steps. Default: five of equal length.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write one self-contained page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report_command(
    runs: tuple[Path, ...], ranges: str | None, markdown: bool, html: Path | None, as_json: bool
) -> None:
    """Report on RUNS, each the --out of a run, finished or going: losses, speed, and what differs from the first.

    \b
    Examples:
      python -m trainer report RUN
      python -m trainer report OFFLOAD RESIDENT --ranges 1-25,26-50 --markdown
      python -m trainer report RUN --html report.html
    """
    from trainer.report.ranges import parse_ranges
    from trainer.report.report import make_report
    from trainer.report.show import show_report

    report = make_report(runs, parse_ranges(ranges) if ranges else None)
    show_report(report, markdown=markdown, html=html, as_json=as_json)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    # All three are read when torch is loaded. Its threads would spin at every barrier, on cores that the update workers
    # need: a step of a tiny model took 3 s instead of 0.05 s on two busy cores. And the vendor's half is loaded by the
    # devices that need it, not by torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    os.environ["OMP_DYNAMIC"] = "false"  # in a team smaller than torch asked for, bfloat16 products are wrong
    return run_command_line(group, "python -m trainer", sys.argv[1:] if args is None else args, trace_faults=True)


if __name__ == "__main__":
    sys.exit(main())
