"""Carries out a pass: a list of operations on the buffers of one device, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from torch import Tensor

from graphcache.device.base import Buffer
from graphcache.graph import TensorSpec
from trainer.model.graph_set import GraphSet
from trainer.model.ops import Call, Download, Free, Op, Upload, View


def carry_out(
    ops: Iterable[Op], buffers: MutableMapping[str, Buffer], graphs: GraphSet, host: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Do `ops` on `buffers`, which then has what they made and lacks what they freed.

    host: what is uploaded, by name. Returns what was downloaded; the caller does not change it.
    """
    backend, downloaded = graphs.backend, {}
    for op in ops:
        match op:
            case Call():
                results = graphs.call(op.part, *(buffers[name] for name in op.args))
                _free(op.frees, buffers, graphs)
                for spec, buffer in zip(op.results, results, strict=True):
                    _add(spec, buffer, buffers)
            case View():
                pieces = backend.cut(buffers.pop(op.of), [spec.shape for spec in op.results])
                for spec, piece in zip(op.results, pieces, strict=True):
                    _add(spec, piece, buffers)
            case Upload():
                assert host is not None
                _add(op.result, backend.upload(host[op.result.name], op.result.name), buffers)
            case Download():
                downloaded[op.of] = backend.download(buffers[op.of]) if op.keeps else backend.take(buffers.pop(op.of))
            case Free():
                _free(op.names, buffers, graphs)
    return downloaded


def _add(spec: TensorSpec, buffer: Buffer, buffers: MutableMapping[str, Buffer]) -> None:
    found = buffer.spec
    assert (found.dtype, found.shape) == (spec.dtype, spec.shape), f"{spec} is {found.dtype} {found.shape}"
    assert spec.name not in buffers, f"{spec.name} is there already"
    buffers[spec.name] = buffer


def _free(names: Iterable[str], buffers: MutableMapping[str, Buffer], graphs: GraphSet) -> None:
    graphs.backend.free(*(buffers.pop(name) for name in names))
