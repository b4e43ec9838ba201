"""Commands that need no compiler, against `python -c "import torch"`; and what tokens cost a trainer's start."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.measure import Result, paired, python, run_command
from tests.support.sparse import write_checkpoint
from tests.support.tiny import LLAMA
from tests.support.tiny import write_checkpoint as write_tiny_checkpoint
from tests.trainer.runs import write_data

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
            _tokens(Path(work)),
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


def _tokens(work: Path) -> Result:
    """`trainer check` with a small file: its tokens are made, which needs transformers, and then they are kept."""
    write_tiny_checkpoint(work / "tiny", LLAMA)
    model, data = str(work / "tiny"), str(write_data(work / "data.jsonl"))
    check = python(
        "-m", "trainer", "check", "--model", model, "--data", data, "--seq", "32", "--out", str(work / "run")
    )

    def secs(caches: str) -> float:
        return run_command(check, {"XDG_CACHE_HOME": caches, "GRAPHCACHE_DIR": str(work / "none")}).wall_secs

    made, kept = paired(lambda: secs(tempfile.mkdtemp(dir=work)), lambda: secs(str(work / "xdg")), ROUNDS)
    return Result(
        "trainer check, seconds more where tokens are made", made - kept, 1.0, True, f"{made:.2f} s, {kept:.2f} s"
    )
