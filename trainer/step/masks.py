"""What the layers of a device are told of a micro-batch's documents: a mask for each."""

from __future__ import annotations

from collections.abc import Mapping

from graphcache.device.base import Buffer, DeviceBackend
from trainer.data.corpus import Batch
from trainer.model.layer_ops import MASK
from trainer.model.rope import document_mask
from trainer.step.schedule import Step


class DocumentMasks:
    """Masks on one device; none where the step has none. By the thread of the device.

    Those of the first micro-batches are kept through the step (`Step.kept_masks`), any other until the next one's.
    """

    def __init__(self, step: Step, backend: DeviceBackend) -> None:
        self._step = step
        self._backend = backend
        self._masks: dict[int, Buffer] = {}

    def of(self, micro_batch: int, batch: Batch) -> Mapping[str, Buffer]:
        """By the name of the table that it takes the place of."""
        if not self._step.masks:
            return {}
        if micro_batch not in self._masks:
            self._make_room()
            model = self._step.model
            starts = batch.starts[0] if batch.starts else ()
            mask = document_mask(self._step.options.sequence, starts, model.heads // model.kv_heads)
            self._masks[micro_batch] = self._backend.upload(mask, MASK)
        return {MASK: self._masks[micro_batch]}

    def free(self) -> None:
        self._backend.free(*self._masks.values())
        self._masks = {}

    def _make_room(self) -> None:
        for passing in [number for number in self._masks if number >= self._step.kept_masks]:
            self._backend.free(self._masks.pop(passing))
