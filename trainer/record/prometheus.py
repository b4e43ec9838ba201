"""RUN/metrics.prom: the newest step in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

# Gauges by the field of a record: the metric, its help, and the label of a field that holds several values.
GAUGES = {
    "step": ("graphcache_trainer_step", "Optimizer steps that are done.", None),
    "loss": ("graphcache_trainer_loss", "Mean loss over the label tokens of the newest step, in nats.", None),
    "eval_loss": ("graphcache_trainer_eval_loss", "Mean loss on --eval-data at the newest evaluation, in nats.", None),
    "lr": ("graphcache_trainer_learning_rate", "Learning rate of the newest step.", None),
    "tokens_per_sec": ("graphcache_trainer_tokens_per_second", "Tokens through the model a second.", None),
    "step_secs": ("graphcache_trainer_step_seconds", "Wall time of the newest step.", None),
    "update_wait_secs": ("graphcache_trainer_update_wait_seconds", "Wait for updates at the end of the step.", None),
    "grad_norm": ("graphcache_trainer_gradient_norm", "L2 norm of all gradients; with --clip-norm only.", None),
    "phase_secs": ("graphcache_trainer_phase_seconds", "Main thread's time in each phase of the step.", "phase"),
    "device_bytes": ("graphcache_trainer_device_bytes", "Device memory in use.", "device"),
    "device_peak_bytes": ("graphcache_trainer_device_peak_bytes", "Most device memory that was in use.", "device"),
}


# Fields that not every step has: a gauge that was never set would say 0.
SOMETIMES = ("grad_norm", "eval_loss")


class PrometheusFile:
    """Rewrites one file after each step, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._registry = CollectorRegistry()
        self._gauges = {
            field: Gauge(name, text, [label] if label else [], registry=self._registry)
            for field, (name, text, label) in GAUGES.items()
            if field not in SOMETIMES
        }

    def step(self, record: Mapping[str, Any]) -> None:
        for field in SOMETIMES:
            if record.get(field) is not None and field not in self._gauges:
                name, text, _ = GAUGES[field]
                self._gauges[field] = Gauge(name, text, registry=self._registry)
        for field, gauge in self._gauges.items():
            value = record.get(field)
            if value is None:
                continue  # the gauge keeps its last value
            if isinstance(value, Mapping):
                for key, below in value.items():
                    gauge.labels(key).set(below)
            else:
                gauge.set(value)
        write_to_textfile(str(self._path), self._registry)

    def close(self) -> None:
        """The file stays: it says how far the run came."""
