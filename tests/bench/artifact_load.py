"""Loading one artifact (open, check, the vendor's deserialize) against the vendor's own warm cache hit."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.bench.measure import Result, python, run_command
from tests.support.sparse import write_checkpoint


def measure() -> list[Result]:
    """Medians of 20 loads and of 5 hits (export and compile call) in one process, Llama-3.1-8B's smallest."""
    with tempfile.TemporaryDirectory() as work:
        model, cache = Path(work, "model"), Path(work, "cache")
        write_checkpoint("llama-3.1-8b", model)
        build = ("build", "--shapes-from", str(model), "--only", "adamw", "--cache", str(cache))
        run_command(python("-m", "cli.main", *build))
        argv = python("-m", "tests.bench.artifact_load_process", str(cache), str(Path(work, "vendor")))
        run = subprocess.run(argv, check=True, capture_output=True, text=True)
    secs = json.loads(run.stdout.splitlines()[-1])
    detail = f"{secs['load'] * 1e3:.2f} ms against {secs['vendor_hit'] * 1e3:.1f} ms"
    return [
        Result("vendor's warm cache hit / loading one artifact", secs["vendor_hit"] / secs["load"], 50, False, detail)
    ]
