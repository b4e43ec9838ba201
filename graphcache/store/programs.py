"""Which program a source exports to, remembered, so that planning, diff and a trainer's start need no export.

Each answer is one small file in the cache, beside the entries. It is not in the memo, which stays on one machine: a
training pod that shares the cache would have to export every graph itself. Manifests know programs too.

The whole question is kept with the answer and compared: a digest alone could collide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.digest import json_sha256
from graphcache.errors import CorruptError, StoreError
from graphcache.graph import Graph
from graphcache.key import PROGRAM_FORMAT
from graphcache.store import records
from graphcache.store.access import make_private
from graphcache.store.files import is_temporary, write_file
from graphcache.store.layout import files, folders
from graphcache.store.reading import read_file
from graphcache.trust.guard import Guard, keep_signature

RECORD_FORMAT = "graphcache-source-1"
FOLDER = "programs"

# What decides a program: source hash, the function's own name, signature, torch's version, the canonical form.
Question = dict[str, str]
# Names how settings are chosen for programs (`graphcache.export.recommend`). Another way gives other settings, so what
# was remembered under it is void, for the graphs that have none of their own.
SETTINGS_FORMAT = "graphcache-settings-1"


@dataclass(frozen=True)
class Answer:
    """The program of a graph, and the compiler settings that are recommended for it; nobody asks for those of a graph
    that has its own."""

    program: str
    settings: Mapping[str, str]


def question_digest(source: str, graph: Graph, torch: str) -> str:
    """Names the record of an answer."""
    return json_sha256(question(source, graph, torch))


def question(source: str, graph: Graph, torch: str) -> Question:
    """The name is in because one statement may bind several functions (`f, g = make(2), make(3)`), whose source hashes
    are then one. Its module is not, so a moved file asks the same. Settings are asked for where a graph has none."""
    by_content = {"settings": SETTINGS_FORMAT} if graph.settings is None or graph.by_content else {}
    return {
        "source": source,
        "name": graph.function.partition(":")[2],
        "signature": graph.signature_digest(),
        "torch": torch,
        "form": PROGRAM_FORMAT,
        **by_content,
    }


class Programs:
    """Answers from this process and from the cache at `root`, in this order.

    guard:     signs the answers that are kept, and refuses unsigned ones, as far as it is told to
    known:     answers to begin with, by the digest of their question, as `graphcache.manifest` gives them
    read_only: whether answers are kept in this process alone
    trouble: why the last answer could not be kept; empty when all is well. Keeping one never fails a command.
    """

    def __init__(
        self,
        root: Path | None,
        known: Mapping[str, Answer] | None = None,
        *,
        read_only: bool = False,
        guard: Guard | None = None,
    ) -> None:
        self.trouble = ""
        self._guard = guard or Guard()
        self._read_only = read_only
        self._root = root
        self._known = dict(known or {})

    def known(self, source: str, graph: Graph, torch: str) -> str | None:
        """The digest of the program that `graph`, of this source hash, exports to; None when nobody remembers."""
        answer = self._answer(source, graph, torch)
        return None if answer is None else answer.program

    def settled(self, source: str, graph: Graph, torch: str) -> Graph:
        """`graph` with its compiler settings, as far as they are known."""
        answer = self._answer(source, graph, torch) if graph.settings is None else None
        return graph if answer is None else graph.with_recommended(answer.settings)

    def _answer(self, source: str, graph: Graph, torch: str) -> Answer | None:
        asked = question(source, graph, torch)
        digest = json_sha256(asked)
        if digest not in self._known:
            found = self._read(asked, digest)
            if found is None:
                return None
            self._known[digest] = found
        return self._known[digest]

    def remember(self, source: str, graph: Graph, torch: str, program: str) -> None:
        """Keep an answer, in the cache where it can be written. The graph's settings are part of it."""
        asked = question(source, graph, torch)
        digest = json_sha256(asked)
        settings = graph.settings if "settings" in asked else None
        answer = self._known[digest] = Answer(program, dict(settings or {}))
        if self._root is None or self._read_only or self._read(asked, digest) == answer:
            return
        record = records.seal(RECORD_FORMAT, _record(asked, answer))
        try:
            write_record(self._root, digest, record, self._guard.sign(record))
        except StoreError as error:
            self.trouble = error.message

    def _read(self, asked: Question, digest: str) -> Answer | None:
        """The answer in the cache. A damaged one is none: it will be written again."""
        if self._root is None:
            return None
        try:
            data = read_file(record_path(self._root, digest))
            found, answer = unsealed_answer(data)
        except (OSError, CorruptError):
            return None
        # Who could choose the program could choose among all that was ever signed.
        return answer if found == asked and not self._guard.refusal_in(self._root, data) else None


def _record(asked: Question, answer: Answer) -> dict[str, Any]:
    """Settings are kept where they are asked for."""
    chosen = {"recommended": dict(answer.settings)} if "settings" in asked else {}
    return {**asked, **chosen, "program": answer.program}


def unsealed_answer(data: bytes) -> tuple[Question, Answer]:
    """The question in a record, and what answers it. Raises CorruptError."""
    found = records.unseal(RECORD_FORMAT, data)
    try:
        program = records.digits("program", found.pop("program", None), 64)
        settings = records.texts("recommended", found.pop("recommended", None)) if "settings" in found else {}
    except ValueError as error:
        raise CorruptError(f"a record of {len(data)} bytes: {error}") from error
    return found, Answer(program, settings)


def records_of(paths: Iterable[Path], programs: Collection[str]) -> Iterator[tuple[Path, bytes]]:
    """The records among `paths` that answer with one of `programs`. One that cannot be read, or is damaged, is none."""
    for path in paths:
        try:
            record = read_file(path)
            _, answer = unsealed_answer(record)
        except (OSError, CorruptError):
            continue
        if answer.program in programs:
            yield path, record


def write_record(root: Path, digest: str, data: bytes, signature: bytes | None) -> None:
    """Keeps a record, which was checked if it is from elsewhere. Raises StoreError."""
    make_private(root)
    if signature is not None:
        keep_signature(root, data, signature)
    write_file(record_path(root, digest), data, replace=True)


def remembered(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file of the cache that keeps an answer, sorted, with the program in it; None for a damaged one."""
    for shard in folders(root / FOLDER):
        for path in files(shard):
            if not is_temporary(path):
                yield path, _program_in(path)


def _program_in(path: Path) -> str | None:
    try:
        return str(records.unseal(RECORD_FORMAT, read_file(path))["program"])
    except (OSError, CorruptError, KeyError):
        return None


def record_path(root: Path, digest: str) -> Path:
    return root / FOLDER / digest[:2] / f"{digest}.json"
