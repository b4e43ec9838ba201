"""Room for the checkpoints that a run holds at a time."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from trainer.checkpoint.folder import MARKER, folder_name
from trainer.config import RunConfig
from trainer.preflight.disk import DiskSpaceError, check_disk

PARAMETERS = 1_000_000
EACH = PARAMETERS * (3 * 4 + 2) + (64 << 20)
Usage = namedtuple("Usage", "total used free")


def config(out: Path, **others: Any) -> RunConfig:
    return RunConfig(model=Path("m"), data=Path("d"), out=out, eval_data=Path("e"), **others)


def held_at_most(of: RunConfig, done: int, steps: int, existing: int) -> int:
    """The run played: saves and what is deleted after each, where every evaluation is the best so far or is not."""
    most = 0
    for improves in (False, True):
        saved = [-n for n in range(existing)][::-1]
        best = saved[0] if of.best and saved else None
        for step in range(done + 1, steps + 1):
            evaluated = of.best and (step == steps or (of.eval_every is not None and step % of.eval_every == 0))
            better = evaluated and (improves or best is None)
            if better or step == steps or (of.save_every is not None and step % of.save_every == 0):
                saved.append(step)
                most = max(most, len(saved))
                best = step if better else best
                saved = [s for s in saved if s in saved[-of.keep :] or s == best]
    return most - existing


@examples(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keep=st.integers(1, 3),
    best=st.booleans(),
    save_every=st.none() | st.integers(1, 9),
    eval_every=st.none() | st.integers(1, 9),
    done=st.integers(0, 9),
    left=st.integers(1, 9),
    existing=st.integers(0, 4),
)
def test_what_is_asked_for_is_what_the_run_will_hold(
    tmp_path_factory, monkeypatch, keep, best, save_every, eval_every, done, left, existing
):
    out = tmp_path_factory.mktemp("run")
    existing = min(existing, done, keep + best)
    for step in range(existing):
        folder = out / "checkpoints" / folder_name(step + 1)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
    of = config(out, keep=keep, best=best, save_every=save_every, eval_every=eval_every)
    needed = held_at_most(of, done, done + left, existing)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, (keep + 2) * EACH))
    check_disk(of, PARAMETERS, done, done + left)  # keep, the best, and the one that is written
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, max(1, needed) * EACH - 1))
    with pytest.raises(DiskSpaceError):
        check_disk(of, PARAMETERS, done, done + left)


def test_the_error_says_how_many_there_will_be(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 4 * EACH - 1))
    message = re.escape(f"a checkpoint takes {EACH:,} bytes, and 4 more will be there at a time: {4 * EACH:,} bytes; ")
    with pytest.raises(DiskSpaceError, match=message) as caught:
        check_disk(config(tmp_path / "new", best=True, save_every=1), PARAMETERS, 0, None)
    assert caught.value.hint == "choose another --out, or a smaller --keep"
    check_disk(config(tmp_path / "new", save_every=1), PARAMETERS, 0, None)
