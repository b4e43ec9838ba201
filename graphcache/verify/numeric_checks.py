"""`verify --numeric` without torch in this process: one process for each fusion runs `graphcache.verify.numeric`.

A graph that makes the vendor's executor crash is that graph's failure; the others go on in a new process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphcache.local.memo import Memo
from graphcache.process.helper import helper_command, helper_environment
from graphcache.process.scratch import scratch_folder
from graphcache.runtime.identity import observed
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.verify.verdict import Verdict, by_fusion, other_toolchain

COMMAND = helper_command("graphcache.verify.numeric")
# An executor reads the lowered graphs of its own compiler; torch says what the function means.
MUST_MATCH = ("furiosa-torch", "compiler-revision", "torch", "fusion")


def numeric_checks(
    store: LocalStore, entries: Sequence[Entry], memo: Memo, *, command: Sequence[str] = COMMAND
) -> Iterator[Verdict]:
    """A verdict for each entry, as it is found. Raises ToolchainError where the vendor is not as it must be."""
    for fusion, group in by_fusion(entries).items():
        toolchain = observed(fusion, memo)
        ours = []
        for entry in group:
            difference = other_toolchain(entry, toolchain, MUST_MATCH)
            if difference:
                yield Verdict(entry, "skipped", f"another toolchain: {difference}")
            else:
                ours.append(entry)
        while ours:
            answered = 0
            for verdict in _run(store, ours, command):
                answered += 1
                yield verdict
            ours = ours[answered:]


def _run(store: LocalStore, entries: Sequence[Entry], command: Sequence[str]) -> Iterator[Verdict]:
    """Verdicts of one process, until all are answered or it dies; the last is then of the entry that it died on."""
    with scratch_folder() as scratch, (scratch / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            (*command, str(store.root)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=helper_environment(scratch),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for entry in entries:
                answer = _ask(process, entry)
                if answer is None:
                    stderr.seek(0)
                    last = (stderr.read().strip().splitlines() or [""])[-1]
                    yield Verdict(entry, "failed", f"the process ended with {process.wait()}: {last}".rstrip(": "))
                    return
                yield _verdict(entry, answer)
        finally:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[str], entry: Entry) -> dict[str, Any] | None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(entry.encode().decode())
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    answer: dict[str, Any] | None = json.loads(line) if line else None
    return answer


def _verdict(entry: Entry, answer: Mapping[str, Any]) -> Verdict:
    if answer["problem"]:
        return Verdict(entry, "failed", answer["problem"], {"results": []})
    errors = ", ".join(f"{result['max_ulps']:.3g} {result['dtype']}" for result in answer["results"])
    detail = f"largest error in ulps: {errors}"
    return Verdict(entry, "passed" if answer["passed"] else "failed", detail, {"results": answer["results"]})
