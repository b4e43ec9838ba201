"""Commands that need no compiler, against `python -c "import torch"`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.measure import Result, paired, python, run_command
from tests.support.sparse import write_checkpoint

ROUNDS = 7
GRAPHCACHE = python("-m", "cli.main")
IMPORT_TORCH = python("-c", "import torch")


def measure() -> list[Result]:
    """Whole-process wall seconds, medians of interleaved runs.

    `import torch` is timed without the vendor's backend hooking into it (TORCH_DEVICE_BACKEND_AUTOLOAD=0): with it the
    import takes about twice as long and every ratio here would look better.
    """
    with tempfile.TemporaryDirectory() as work:
        return [
            _ratio(work, "graphcache diff, nothing changed, Llama-3.1-8B", "llama-3.1-8b", "diff", 0.15),
            _ratio(work, "graphcache diff, nothing changed, Llama-3.1-405B", "llama-3.1-405b", "diff", 0.3),
            _ratio(work, "graphcache build, everything there, Llama-3.1-8B", "llama-3.1-8b", "build", 0.2),
        ]


def _ratio(work: str, name: str, preset: str, command: str, aim: float) -> Result:
    model, manifest = Path(work, preset), Path(work, f"{preset}.json")
    env = {"GRAPHCACHE_DIR": str(Path(work, "cache")), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    build = [*GRAPHCACHE, "build", "--shapes-from", str(model), "--only", "adamw"]
    if not model.exists():
        write_checkpoint(preset, model)
        run_command([*build, "--manifest", str(manifest)], env)
    argv = build if command == "build" else [*GRAPHCACHE, "diff", "--manifest", str(manifest)]
    ours, theirs = paired(
        lambda: run_command(argv, env).wall_secs, lambda: run_command(IMPORT_TORCH, env).wall_secs, ROUNDS
    )
    return Result(name, ours / theirs, aim, True, f"{ours:.3f} s against {theirs:.3f} s")
