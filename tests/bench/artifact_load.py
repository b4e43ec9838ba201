"""Loading one artifact (open, check, the vendor's deserialize) against the vendor's own warm cache hit."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.bench.measure import Result, python, run_command
from tests.support.sparse import write_checkpoint

ELEMENTS = 4_194_304


def measure() -> list[Result]:
    """Medians of 20 loads and of 5 hits in one process that has both warm."""
    with tempfile.TemporaryDirectory() as work:
        model = Path(work, "model")
        write_checkpoint("llama-3.1-8b", model)
        env = {"GRAPHCACHE_DIR": str(Path(work, "cache"))}
        run_command(python("-m", "cli.main", "build", "--shapes-from", str(model), "--only", "adamw"), env)
        run = subprocess.run(
            python("-m", "tests.bench.artifact_load_process", str(Path(work, "cache")), str(Path(work, "vendor"))),
            check=True,
            capture_output=True,
            text=True,
        )
        secs = json.loads(run.stdout.splitlines()[-1])
    ratio = secs["vendor_hit"] / secs["load"]
    detail = f"{secs['load'] * 1e3:.2f} ms against {secs['vendor_hit'] * 1e3:.1f} ms (adamw[{ELEMENTS}])"
    return [Result("vendor's warm cache hit / loading one artifact", ratio, 50, False, detail)]
