"""The vendor's versions that tests run with: the installed one, and an older one laid over it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.sparse import write_shard

INSTALLED, OLDER = "2026.4", "2026.2"
OLDER_VARIABLE = "GRAPHCACHE_TEST_FURIOSA_2026_2"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Vendor:
    """One version, and a machine of its own: HOME, caches, temporary files."""

    release: str
    overlay: Path | None
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        places = [str(place) for place in (self.overlay, ROOT) if place]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(places),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / "xdg"),
            "GRAPHCACHE_DIR": str(self.home / "cache"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }

    def cli(self, *args: str, code: int = 0, **environment: str) -> Any:
        """What a graphcache command with --json prints; it must end with `code`."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *args, "--json"],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return json.loads(done.stdout)

    def python(self, script: str, *args: str) -> Any:
        """What a script with this vendor prints last, as JSON."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, *args],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])


def vendor(release: str, home: Path) -> Vendor:
    """Skips where the older version is not laid out; fails where CI should have done so."""
    if release == INSTALLED:
        return Vendor(release, None, home)
    place = os.environ.get(OLDER_VARIABLE)
    if not place or not Path(place).is_dir():
        message = f"{OLDER_VARIABLE} does not name a folder with furiosa-torch {release}; ./dev test makes one"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return Vendor(release, Path(place), home)


def model(folder: Path, *shapes: tuple[int, int]) -> Path:
    """A checkpoint whose one layer has a weight of each shape."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    write_shard(path, {f"model.layers.0.w{i}.weight": shape for i, shape in enumerate(shapes)})
    return path
