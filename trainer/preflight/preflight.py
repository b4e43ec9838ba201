"""What a run needs, looked for before anything is opened: model, data, graphs, memory, cards, disk space.

Everything that is missing is said at once. Nothing here takes a card, so `check` is this and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from graphcache.artifact import Artifact
from graphcache.device.backend_name import POOL_BYTES, parse
from graphcache.device.base import DeviceBackend
from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.select import Choice, choose, open_devices
from graphcache.errors import GraphcacheError, MissingGraphsError
from graphcache.graph import Graph
from graphcache.header.table import read_config
from graphcache.process.limits import available_memory_bytes
from trainer.architecture.config import ModelConfig
from trainer.checkpoint.folder import SavedCheckpoint, newest
from trainer.checkpoint.load import check_data
from trainer.checkpoint.pretrained import InputCheckpoint
from trainer.config import ConfigError, RunConfig, check_resumable, check_same_end
from trainer.data.ahead import TokensAhead
from trainer.data.corpus import Corpus
from trainer.data.errors import DataError
from trainer.data.kept_tokens import tokens_of
from trainer.device.cpu import CpuBackend
from trainer.optim.adamw import worker_count
from trainer.preflight.cached_graphs import MODEL_CATALOGS, CachedGraphs, find_graphs
from trainer.preflight.disk import check_disk
from trainer.preflight.host_load import check_load
from trainer.record.folder import RunFolder, RunFolderError
from trainer.record.say import say
from trainer.record.watchers import check_tensorboard
from trainer.step.choose import choose_step
from trainer.step.memory import MemoryPlan
from trainer.step.schedule import Step

T = TypeVar("T")


class PreflightError(GraphcacheError):
    """Several things that a run needs are missing, none of them a graph."""

    name = "preflight"


class MemoryPlanError(GraphcacheError):
    """What the run would keep does not fit into a device's pool, or into the host's memory."""

    name = "memory-plan"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A run that lacks nothing. held_out: None without --eval-data; graphs: None where none come from the cache."""

    config: RunConfig
    checkpoint: InputCheckpoint
    corpus: Corpus
    held_out: Corpus | None
    saved: SavedCheckpoint | None
    choice: Choice
    step: Step
    memory: MemoryPlan
    graphs: CachedGraphs | None

    @property
    def done(self) -> int:
        """Optimizer steps that are in the checkpoint to go on from."""
        return 0 if self.saved is None else self.saved.step

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return steps_in_all(self.config, self.corpus)

    def open_devices(self) -> list[DeviceBackend]:
        """From here on nothing in this process can compile, unless all devices are the host."""
        return open_devices(
            self.choice,
            self._artifact,
            fusion=self.config.fusion,
            pool_bytes=self.config.pool_bytes or POOL_BYTES,
            eager_catalogs=MODEL_CATALOGS if self.config.eager_layers else (),
            timing=self.timing,
            cpu=CpuBackend,
        )

    @property
    def timing(self) -> EmulatedTime | None:
        """What calls and copies of emulated cards take; None: what the host takes."""
        config = self.config
        if config.emulated_time is None:
            return None
        return EmulatedTime(
            self._estimate_ns, config.emulated_time, config.emulated_link * 1e9, arithmetic=not config.no_arithmetic
        )

    def _estimate_ns(self, graph: Graph) -> int | None:
        assert self.graphs is not None
        return self.graphs.estimate_ns(graph)

    def _artifact(self, graph: Graph) -> Artifact:
        assert self.graphs is not None
        return self.graphs.artifact(graph)


class Findings:
    """What was looked for, as far as it was found, and every problem."""

    def __init__(self, config: RunConfig, tokens: TokensAhead | None = None, *, held: bool = False) -> None:
        """tokens: what was made of data files already; held: this process holds RUN, so whether it could is not asked.

        Raises BackendError.
        """
        tokens = tokens or {}
        self.config = config
        self.problems: list[GraphcacheError] = []
        # Without a backend there is nothing to look for.
        self.kind, names = parse(config.backend)
        self.choice = self._attempt(lambda: choose(config.backend, fusion=config.fusion))
        self.saved = self._attempt(lambda: _resume_point(config, held))
        self.checkpoint = self._attempt(lambda: _checkpoint(config))
        self._attempt(lambda: check_tensorboard(config.tensorboard))
        # A run waits for it later, with everything else found.
        self.load = None if held else self._attempt(lambda: check_load(config.wait_for_load))
        self.corpus = self._attempt(lambda: _training_corpus(config, tokens, self.checkpoint, self.saved))
        self.held_out = self._attempt(lambda: _held_out_corpus(config, tokens, self.checkpoint))
        self.step: Step | None = None
        self.memory: MemoryPlan | None = None
        self.graphs: CachedGraphs | None = None
        if self.checkpoint is not None:
            self._look_at_model(self.checkpoint, len(names))

    def problem(self) -> GraphcacheError | None:
        """The only problem as it is, or one error that lists all, with the worst one's exit code; None without any."""
        if len(self.problems) < 2:
            return self.problems[0] if self.problems else None
        lines = [line for problem in self.problems for line in _item(problem)]
        missing = next((p for p in self.problems if isinstance(p, MissingGraphsError)), None)
        # Without its folder a run ends before it looks for graphs.
        no_folder = any(isinstance(p, RunFolderError) for p in self.problems)
        kind = MissingGraphsError if missing and not no_folder else PreflightError
        hint = missing.hint if missing else ""
        return kind(f"{len(self.problems)} things stand in the way", details=lines, hint=hint)

    def ready(self) -> Ready:
        """The run. Raises `problem`."""
        problem = self.problem()
        if problem is not None:
            raise problem
        assert self.checkpoint is not None
        assert self.corpus is not None
        assert self.choice is not None
        assert self.step is not None
        assert self.memory is not None
        return Ready(
            config=self.config,
            checkpoint=self.checkpoint,
            corpus=self.corpus,
            held_out=self.held_out,
            saved=self.saved,
            choice=self.choice,
            step=self.step,
            memory=self.memory,
            graphs=self.graphs,
        )

    def _look_at_model(self, checkpoint: InputCheckpoint, devices: int) -> None:
        config = self.config
        if self.saved is not None:
            saved = self.saved
            self._attempt(lambda: _check_model(saved, checkpoint))
        done = 0 if self.saved is None else self.saved.step
        steps = config.steps if self.corpus is None else steps_in_all(config, self.corpus)
        self._attempt(lambda: check_disk(config, checkpoint.parameters, done, steps))
        if self.kind != "cpu":
            self.graphs = self._attempt(lambda: find_graphs(checkpoint, config))
            if self.graphs is not None:
                self._attempt(self.graphs.entries)
                if config.require_proof:
                    self._attempt(self.graphs.check_proven)
        chosen = self._attempt(lambda: self._choose(checkpoint, devices))
        if chosen is not None:
            self.step, memory = chosen
            self.memory = memory
            self._attempt(lambda: _check_memory(memory, config, self.kind))

    def _choose(self, checkpoint: InputCheckpoint, devices: int) -> tuple[Step, MemoryPlan]:
        """How the step is dealt to the devices, and what it keeps. Without data, as if there were enough of it."""
        config = self.config
        micro_batches = config.accum
        if self.corpus is not None:
            micro_batches = min(micro_batches, -(-self.corpus.facts.sequences // config.micro_batch))
        return choose_step(
            checkpoint.config,
            config,
            devices,
            micro_batches=max(1, micro_batches),
            pool_bytes=config.pool_bytes,
            program_bytes=0 if self.graphs is None else self.graphs.size_bytes + self.graphs.joining_bytes,
            workers=worker_count(config),
        )

    def _attempt(self, look: Callable[[], T]) -> T | None:
        """What `look` returns; None when it raised an error for users, which is kept."""
        try:
            return look()
        except GraphcacheError as error:
            self.problems.append(error)
            return None


def _item(problem: GraphcacheError) -> list[str]:
    """The lines of one problem in a list of them. How to build missing graphs is the hint of the whole list."""
    first, *more = problem.lines
    hint = [] if isinstance(problem, MissingGraphsError) or not problem.hint else [f"    {problem.hint}"]
    return [f"  [{problem.name}] {first}", *(f"  {line}" for line in more), *hint]


def steps_in_all(config: RunConfig, corpus: Corpus) -> int:
    """Optimizer steps of the whole run, those of earlier sessions included."""
    return config.steps or corpus.steps_per_epoch(config.sequences_per_step)


def _resume_point(config: RunConfig, held: bool) -> SavedCheckpoint | None:
    """Where a resumed run goes on; None for the beginning, which is right too when there is no checkpoint yet."""
    folder = RunFolder(config.out)
    if not held:
        folder.check(resume=config.resume)
    saved = newest(folder.checkpoints) if config.resume else None
    if saved is not None:
        check_resumable(saved.config, config)
    return saved


def _checkpoint(config: RunConfig) -> InputCheckpoint:
    if _is_absent(config.model):
        raise ConfigError(
            f"--model {config.model}: there is no such file or folder",
            hint="nothing is fetched from a hub: --model is a folder here, as transformers saves it",
        )
    checkpoint = InputCheckpoint(config.model)
    checkpoint.check_derived()
    longest = checkpoint.config.max_length
    if longest is not None and config.seq > longest:
        raise ConfigError(f"--seq is {config.seq}, and the model is meant for at most {longest} tokens")
    return checkpoint


def _is_absent(path: Path) -> bool:
    """Not so where that cannot be told: what reads the path says why."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _check_model(saved: SavedCheckpoint, checkpoint: InputCheckpoint) -> None:
    """Checks that --model has the sizes and the arithmetic of the resumed run, whose weights come from `saved`."""
    before = vars(ModelConfig.from_json(read_config(saved.folder) or {}))
    differing = [
        f"{name} was {before[name]!r} and is {value!r}"
        for name, value in vars(checkpoint.config).items()
        if before[name] != value and name != "max_length"  # bounds --seq, which may not differ, and nothing else
    ]
    if differing:
        raise ConfigError(
            f"--model is not the model of {saved.folder}: {'; '.join(differing)}",
            hint="--model is the one that the run began with",
        )


def _corpus(
    flag: str, path: Path, config: RunConfig, tokens: TokensAhead, checkpoint: InputCheckpoint | None
) -> Corpus | None:
    """None without a model's folder, whose tokenizer then need not be missed too."""
    if _is_absent(path):
        raise DataError(f"{flag} {path}: there is no such file")
    if _is_absent(config.model):
        return None
    folder = config.model if config.model.is_dir() else config.model.parent
    found = tokens.get(path) or tokens_of(path, folder, config.ignored_fields, config.cache, say)
    if isinstance(found, DataError):
        raise found
    corpus = Corpus(found, config.seq)
    if checkpoint is not None:
        corpus.check_vocabulary(checkpoint.config.vocab)
    return corpus


def _held_out_corpus(config: RunConfig, tokens: TokensAhead, checkpoint: InputCheckpoint | None) -> Corpus | None:
    return None if config.eval_data is None else _corpus("--eval-data", config.eval_data, config, tokens, checkpoint)


def _training_corpus(
    config: RunConfig, tokens: TokensAhead, checkpoint: InputCheckpoint | None, saved: SavedCheckpoint | None
) -> Corpus | None:
    corpus = _corpus("--data", config.data, config, tokens, checkpoint)
    if corpus is not None and saved is not None:
        check_data(saved, corpus.facts.as_json())
        check_same_end(saved.config, config, corpus.steps_per_epoch(config.sequences_per_step))
    return corpus


def process_bytes(memory: MemoryPlan, kind: str) -> int:
    """What the process holds in the host's memory, where devices of the kinds `cpu` and `emulator` are too."""
    devices = 0 if kind == "furiosa" else sum(plan.total_bytes for plan in memory.devices)
    return memory.host_bytes + devices


def _check_memory(memory: MemoryPlan, config: RunConfig, kind: str) -> None:
    """Raises one error for all that does not fit."""
    pool, in_all, faults = config.pool_bytes, process_bytes(memory, kind), []
    if pool is not None:
        faults = [
            f"device {plan.device} would hold {plan.total_bytes:,} bytes and its pool is {pool:,}"
            for plan in memory.devices
            if plan.total_bytes > pool
        ]
    more = "fewer resident layers, more cards" if faults else "more memory"
    if in_all > available_memory_bytes():
        faults.append(f"the host would hold {in_all:,} bytes and may use {available_memory_bytes():,}")
    if faults:
        raise MemoryPlanError("; ".join(faults), hint=f"a smaller --micro-batch or --seq, or {more}")
