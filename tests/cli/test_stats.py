"""Prometheus' text format of stats: what its parser would take, with the same figures as --json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.main import run
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_artifact, fake_facts, fake_key

# A sample line, by the format's own grammar.
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{catalog="((?:[^"\\\n]|\\.)*)"\} ([-+0-9.e]+)')


def test_prometheus_gets_the_figures_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LocalStore(tmp_path)
    for number, catalog in enumerate(["adamw", "adamw", 'odd"\\\nname']):
        key = fake_key(number)
        store.commit(key, fake_artifact(key), fake_facts(f"g{number}", catalog=catalog))
    assert run(["stats", "--cache", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert run(["stats", "--cache", str(tmp_path), "--format", "prometheus"]) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            label = re.sub(r"\\(.)", lambda each: {"n": "\n"}.get(each[1], each[1]), sample[2])
            found[sample[1], label] = float(sample[3])
    assert found["graphcache_entries", "adamw"] == 2
    for catalog, totals in facts["catalogs"].items():
        assert found["graphcache_bytes", catalog] == totals["size_bytes"]
        assert found["graphcache_compile_seconds", catalog] == totals["compile_secs"]
