"""The settings of a run, checked as soon as they are given: a wrong one ends the run before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from graphcache.catalog import CatalogOptions
from graphcache.device.backend_name import POOL_BYTES, parse
from graphcache.errors import UsageError

SCHEDULES = ("constant", "linear", "cosine")
DTYPES = ("bfloat16", "float32")
# PEs of one device, which is one card here, or a part of one.
FUSIONS = (1, 2, 4, 8)
# Of float32: cards flush what is smaller to zero.
SMALLEST_NORMAL = 2.0**-126
# Of anything that is counted: two multiplied still are a 64-bit number.
LARGEST_COUNT = 2**31 - 1
LARGEST_POOL_GIB = 2.0**20

# What may differ between a run and its continuation: where things are, and what changes no arithmetic.
FREE_ON_RESUME = frozenset(
    {"model", "data", "out", "backend", "steps", "resident_layers", "update_workers", "save_every", "keep", "resume",
     "cache", "remote", "trust", "fusion", "require_proof", "eager_layers", "pool_gib", "emulated_time",
     "emulated_link", "tensorboard", "trace", "ignore_fields",
     "wait_for_load", "wait_secs", "eval_data", "eval_every", "best"}
)  # fmt: skip


class ConfigError(UsageError):
    """A setting of a run that cannot be right, or that differs from the run that is resumed."""

    name = "config"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. Counts unless the name says otherwise.

    steps:           optimizer steps in all, those before a resume included; None: one pass over the data
    seq:             tokens in a sequence; micro_batch: sequences in a graph call; accum: micro-batches in a step
    resident_layers: layers on each device that keep AdamW's state there
    warmup_steps:    steps over which the learning rate rises to `lr`
    clip_norm:       largest L2 norm of all gradients together; None: not clipped
    document_mask:   whether a sequence's documents do not see each other; None: where a micro-batch is one sequence
    save_every:      steps between checkpoints; None: one at the end
    keep:            complete checkpoints that are kept
    eval_data:       held-out data; None: no loss is measured on any
    eval_every:      steps between evaluations; None: one at the end
    best:            whether the checkpoint with the lowest held-out loss is kept beside those
    remote:          where graphs are looked for that the cache lacks, in this order; empty: $GRAPHCACHE_REMOTE
    trust:           a file of keys, one of which has to have signed each graph; None: $GRAPHCACHE_TRUST, or no check
    fusion:          PEs that the cached artifacts were compiled for
    eager_layers:    emulator only: layers and head run eagerly on the host, the optimizer's graphs from the cache
    wait_for_load:   one-minute load of the host above which a run waits; None: it never waits
    wait_secs:       longest wait for that load, then the run is refused
    tensorboard:     folder of TensorBoard's event files; None: none are written
    trace:           where a step's timeline is written besides RUN/trace.json; None: nowhere
    require_proof:   whether a graph that is not proven ends the run before it begins
    pool_gib:        emulator only: the card's memory, in GiB; None: as large as a real card's
    emulated_time:   emulator only: a call takes the compiler's estimate of its device time, times this; None: what the
                     host takes
    emulated_link:   with emulated_time: GB/s of copies to and from a card
    no_arithmetic:   with emulated_time: nothing is computed on the card, every result is 1
    ignore_fields:   of the data: names of fields of records that are not read, joined by commas
    """

    model: Path
    data: Path
    out: Path
    backend: str = "cpu"
    resident_layers: int = 0
    update_workers: int = 4
    steps: int | None = None
    seq: int = 512
    accum: int = 4
    micro_batch: int = 1
    lr: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    schedule: str = "constant"
    warmup_steps: int = 0
    clip_norm: float | None = None
    dtype: str = "bfloat16"
    document_mask: bool | None = None
    seed: int = 0
    save_every: int | None = None
    keep: int = 2
    eval_data: Path | None = None
    eval_every: int | None = None
    best: bool = False
    resume: bool = False
    cache: str | None = None
    remote: tuple[str, ...] = ()
    trust: Path | None = None
    fusion: int = 8
    eager_layers: bool = False
    require_proof: bool = False
    pool_gib: float | None = None
    emulated_time: float | None = None
    emulated_link: float = 20.0
    no_arithmetic: bool = False
    ignore_fields: str = ""
    tensorboard: Path | None = None
    trace: Path | None = None
    wait_for_load: float | None = None
    wait_secs: float = 3600.0

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ConfigError("; ".join(faults), hint="python -m trainer run --help lists the settings")

    def _faults(self) -> Iterator[str]:
        for name in ("seq", "accum", "micro_batch", "update_workers", "keep"):
            yield from self._whole(name, 1, LARGEST_COUNT)
        for name in ("resident_layers", "warmup_steps"):
            yield from self._whole(name, 0, LARGEST_COUNT)
        for name in ("steps", "save_every", "eval_every"):
            if getattr(self, name) is not None:
                yield from self._whole(name, 1, LARGEST_COUNT)
        yield from self._whole("seed", 0, math.inf)
        yield from self._range("lr", 0.0, 1.0)
        yield from self._range("weight_decay", 0.0, 1.0)
        yield from self._range("eps", SMALLEST_NORMAL, 1.0)
        yield from self._range("beta1", 0.0, 1.0, open_high=True)
        yield from self._range("beta2", 0.0, 1.0, open_high=True)
        if self.clip_norm is not None:
            yield from self._range("clip_norm", 0.0, math.inf, open_low=True, open_high=True)
        if self.wait_for_load is not None:
            yield from self._range("wait_for_load", 0.0, math.inf, open_low=True, open_high=True)
        yield from self._one_of("schedule", SCHEDULES)
        yield from self._one_of("dtype", DTYPES)
        yield from self._one_of("fusion", FUSIONS)
        if self.lr * self.weight_decay >= 1:
            yield f"--lr {self.lr} times --weight-decay {self.weight_decay} would take whole weights away"
        if self.pool_gib is not None:
            yield from self._range("pool_gib", 0.0, LARGEST_POOL_GIB, open_low=True)
        if self.eval_data is None:
            for name in ("eval_every", "best"):
                if getattr(self, name):
                    yield f"{_flag(name)} needs --eval-data"
        if self.document_mask and self.micro_batch > 1:
            yield "--document-mask needs --micro-batch 1: all sequences of a graph call have one mask"
        yield from self._emulated_faults()
        for name in ("eager_layers", "pool_gib", "emulated_time", "no_arithmetic"):
            if getattr(self, name) and not self.backend.startswith("emulator"):
                yield f"{_flag(name)} is for the emulator, and --backend is {self.backend!r}"

    def _emulated_faults(self) -> Iterator[str]:
        yield from self._range("emulated_link", 0.0, math.inf, open_low=True, open_high=True)
        if self.emulated_time is None:
            if self.no_arithmetic:
                yield "--no-arithmetic needs --emulated-time: nothing would take any time"
            return
        yield from self._range("emulated_time", 0.0, math.inf, open_low=True, open_high=True)
        if self.eager_layers:
            yield "--emulated-time takes each graph's estimate from its artifact, and --eager-layers uses none"

    def _whole(self, name: str, low: int, high: float) -> Iterator[str]:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            bounds = f"{low} or more" if high == math.inf else f"from {low} to {high:,}"
            yield f"{_flag(name)} is {value!r}, and must be a whole number, {bounds}"

    def _range(
        self, name: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
    ) -> Iterator[str]:
        value = getattr(self, name)
        inside = low <= value <= high and not (open_low and value == low) and not (open_high and value == high)
        if not inside:  # NaN is not inside either
            bounds = f"{'above' if open_low else 'at least'} {low} and {'below' if open_high else 'at most'} {high}"
            yield f"{_flag(name)} is {value!r}, and must be {bounds}"

    def _one_of(self, name: str, values: tuple[Any, ...]) -> Iterator[str]:
        if getattr(self, name) not in values:
            yield f"{_flag(name)} is {getattr(self, name)!r}, and must be one of {', '.join(map(str, values))}"

    @property
    def catalog_options(self) -> CatalogOptions:
        """The choices that enter the graphs' signatures."""
        return replace(CatalogOptions(), sequence=self.seq, micro_batch=self.micro_batch, dtype=self.dtype)

    @property
    def pool_bytes(self) -> int | None:
        """The memory of one card, or of one emulated card; None where the host is the device."""
        if parse(self.backend)[0] == "cpu":
            return None
        return POOL_BYTES if self.pool_gib is None else int(self.pool_gib * 1024**3)

    @property
    def masks_documents(self) -> bool:
        return self.micro_batch == 1 if self.document_mask is None else self.document_mask

    @property
    def sequences_per_step(self) -> int:
        return self.micro_batch * self.accum

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        return tuple(filter(None, (name.strip() for name in self.ignore_fields.split(","))))

    def as_json(self) -> dict[str, Any]:
        values = {**asdict(self), "document_mask": self.masks_documents}
        return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def check_resumable(before: Mapping[str, Any], now: RunConfig) -> None:
    """Checks that `now` continues the run whose settings were `before` (its config.json), all but the run's end.

    Raises ConfigError naming every setting that differs and would make the continued run another run.
    """
    values = now.as_json()
    before = {"document_mask": False, **before}  # before there was a mask
    differing = [
        f"{_flag(name)} was {before.get(name)!r} and is {values[name]!r}"
        for name in sorted(set(values) - FREE_ON_RESUME)
        if before.get(name) != values[name]
    ]
    if before.get("best") and not now.best:
        differing.append("--best was given and is not: the checkpoint that it kept would be deleted")
    if differing:
        raise ConfigError("; ".join(differing), hint="give the same settings, or another --out for a new run")


def check_same_end(before: Mapping[str, Any], now: RunConfig, epoch_steps: int) -> None:
    """Checks that a schedule that depends on the number of steps ends where it did. Raises ConfigError.

    epoch_steps: steps of one pass over the data, for runs without --steps
    """
    old, new = (steps or epoch_steps for steps in (before.get("steps"), now.steps))
    if now.schedule != "constant" and old != new:
        raise ConfigError(
            f"--steps was {old} and is {new} under --schedule {now.schedule}",
            hint="give the same number, or another --out for a new run",
        )


def _flag(name: str) -> str:
    return "--betas" if name in ("beta1", "beta2") else "--" + name.replace("_", "-")
