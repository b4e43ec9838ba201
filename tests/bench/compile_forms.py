"""What the compiler takes for each form of `tests.bench.layer_forms`, as a table for docs/compiler-workarounds.md.

    python -m tests.bench.compile_forms [--limit SECS] [--setting tactic=default ...] [FORM ...]
    PYTHONPATH=DIR python -m tests.bench.compile_forms ...        furiosa-torch 2026.2 from DIR

Each form is compiled in a process of its own, which gets `--limit` CPU seconds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Mapping

from graphcache.process.scratch import scratch_folder
from tests.bench.layer_forms import FORMS


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.compile_forms")
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(_row(options.forms[0], dict(setting.split("=") for setting in options.setting)))
        return
    print("| form | settings | wall s | CPU s | peak GB | bytes | estimate ns |\n|---|---|---|---|---|---|---|")
    for form in options.forms:
        given = options.setting or [f"{name}={value}" for name, value in FORMS[form].settings.items()]
        print(_measured(form, given, options.limit), flush=True)


def _measured(form: str, settings: list[str], limit_secs: int) -> str:
    command = [sys.executable, "-m", "tests.bench.compile_forms", "--alone", form]
    for setting in settings:
        command += ["--setting", setting]
    limit = (limit_secs, limit_secs)
    run = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit)
    )
    if run.returncode < 0:
        return f"| {form} | {' '.join(settings)} | not done after {limit_secs} CPU s | | | | |"
    return run.stdout.strip() or f"| {form} | {' '.join(settings)} | {run.stderr.strip().splitlines()[-1]} |"


def _row(form: str, settings: Mapping[str, str]) -> str:
    from graphcache.export.program import export
    from graphcache.toolchain.base import CompileError
    from graphcache.toolchain.furiosa import FuriosaCompiler

    words = " ".join(f"{name}={value}" for name, value in settings.items())
    with scratch_folder() as scratch:
        compiler = FuriosaCompiler(8, scratch)
        exported = export(FORMS[form])
        started, before_secs = time.monotonic(), time.process_time()
        try:
            compiled = compiler.compile(exported, settings)
        except CompileError as error:
            return f"| {form} | {words} | {error.message.splitlines()[0][:100]} |"
        wall_secs, cpu_secs = time.monotonic() - started, time.process_time() - before_secs
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    cells = f"{wall_secs:.1f}", f"{cpu_secs:.1f}", f"{peak_gb:.1f}", f"{len(compiled.runnable):,}"
    return f"| {form} | {words} | {' | '.join(cells)} | {compiled.estimate_ns or 0:,} |"


if __name__ == "__main__":
    main()
