"""Errors of furiosa-torch as they came, of 2026.4.0 where not said; only paths and long lists were shortened."""

# ruff: noqa: E501

from __future__ import annotations

LOGSUMEXP = (
    "failed to compile\n"
    "graph():\n"
    "    %args_0 : [num_users=1] = placeholder[target=args_0]\n"
    "    %mul : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%args_0, 2), kwargs = {})\n"
    "    %logsumexp : [num_users=1] = call_function[target=torch.ops.aten.logsumexp.default](args = (%mul, [-1]), kwargs = {})\n"
    "    return (logsumexp,)\n"
    "source:\n"
    "    mul                  demo/graphs.py:7                 return self.function(*args)\n"
    "    logsumexp            demo/graphs.py:7                 return self.function(*args)\n"
    "compile error:\n"
    "failed to import dfg: Not importable for all cases, logsumexp\n"
    'aten_err: Not importable, Node { origin: Py(0x7f91fbc8e430), name: "logsumexp", op: CallFunction, target: TorchOp("aten::logsumexp", Py(0x7f9210dfca50)), args: [Node("mul"), List([Int(-1)])], kwargs: {}, stack_trace: Some(Py(0x7f381205e3a0)), meta: {"seq_nr": Py(0x7f394954e868)}, users: ["output"] }\n'
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/aten_ops.rs:463:14\n"
    'model_compression_err: Not importable, Node { origin: Py(0x7f91fbc8e430), name: "logsumexp", op: CallFunction, target: TorchOp("aten::logsumexp", Py(0x7f9210dfca50)), args: [Node("mul"), List([Int(-1)])], kwargs: {}, stack_trace: Some(Py(0x7f381205e3a0)), meta: {"seq_nr": Py(0x7f394954e868)}, users: ["output"] }\n'
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/model_compression_ops.rs:37:14\n"
    'compiled_ops_err: Not importable, Node { origin: Py(0x7f91fbc8e430), name: "logsumexp", op: CallFunction, target: TorchOp("aten::logsumexp", Py(0x7f9210dfca50)), args: [Node("mul"), List([Int(-1)])], kwargs: {}, stack_trace: Some(Py(0x7f381205e3a0)), meta: {"seq_nr": Py(0x7f394954e868)}, users: ["output"] }\n'
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/compiled_ops.rs:44:13\n"
    'metadata_err: Not importable as metadata op: Node { origin: Py(0x7f91fbc8e430), name: "logsumexp", op: CallFunction, target: TorchOp("aten::logsumexp", Py(0x7f9210dfca50)), args: [Node("mul"), List([Int(-1)])], kwargs: {}, stack_trace: Some(Py(0x7f381205e3a0)), meta: {"seq_nr": Py(0x7f394954e868)}, users: ["output"] }\n'
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/metadata_ops.rs:40:14\n"
    'marker_err: Not importable, Node { origin: Py(0x7f91fbc8e430), name: "logsumexp", op: CallFunction, target: TorchOp("aten::logsumexp", Py(0x7f9210dfca50)), args: [Node("mul"), List([Int(-1)])], kwargs: {}, stack_trace: Some(Py(0x7f381205e3a0)), meta: {"seq_nr": Py(0x7f394954e868)}, users: ["output"] }\n'
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/marker_ops.rs:23:14\n"
    "\n"
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-torch-common/src/dfg_import/mod.rs:608:13"
)

SORT = (
    "failed to lower dfg\n"
    "source:\n"
    "    sort                 demo/graphs.py:7                 return self.function(*args)\n"
    "compile error:\n"
    "(cache at /tmp/worker-0/vendor-cache/cc759e7fcf10bd14)\n"
    "\n"
    "Caused by:\n"
    "   0: while verifying sort\n"
    "   1: Lowering Deadline Violation: Aten(sort) is allowed up to dfg, found in primitive.\n"
    "\n"
    "Location:\n"
    "    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/global-compiler/src/lib.rs:65:30"
)

NO_HEADERS = "failed to compile dfg to Runnable: PyErr { type: <class 'furiosa.torch._C.error.CompileError'>, value: CompileError('(cache at /tmp/worker-0/vendor-cache/49ef4c8cb6c9282d)\\n\\nCaused by:\\n   0: failed to compile /tmp/.tmpUcsJ58.c\\n   1: In file included from /usr/include/features.h:392,\\n                       from /usr/include/assert.h:35,\\n                       from /tmp/.tmptKsgbk/pe.h:4,\\n                       from <stdin>:1:\\n      /usr/include/features-time64.h:20:10: fatal error: bits/wordsize.h: No such file or directory\\n         20 | #include <bits/wordsize.h>\\n            |          ^~~~~~~~~~~~~~~~~\\n      compilation terminated.\\n\\n   2: failed to run cc\\n   3: process exited unsuccessfully: exit status: 1\\n\\nLocation:\\n    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/npu-utils/src/command.rs:137:17\\n\\nLocation:\\n    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/global-compiler/src/lib.rs:95:64', set()), traceback: None }"

NO_CC = "failed to compile dfg to Runnable: PyErr { type: <class 'furiosa.torch._C.error.CompileError'>, value: CompileError('(cache at /tmp/worker-0/vendor-cache/49ef4c8cb6c9282d)\\n\\nCaused by:\\n    No such file or directory (os error 2)\\n\\nLocation:\\n    /usr/local/cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/fc43f6a7/crates/global-compiler/src/lib.rs:60:26', set()), traceback: None }"

# 2026.2.0: the cause of an exception that says `failed to compile the graph`.
OLDER_NO_HEADERS = (
    "failed to compile /tmp/.tmpSWnb2E.c\n"
    "\n"
    "Caused by:\n"
    "   0: In file included from /usr/include/features.h:392,\n"
    "                       from /tmp/.tmpC0DAeF/pe.h:4,\n"
    "                       from <stdin>:1:\n"
    "      /usr/include/features-time64.h:20:10: fatal error: bits/wordsize.h: No such file or directory\n"
    "      compilation terminated.\n"
    "\n"
    "   1: failed to run cc: ExitStatusError(unix_wait_status(256))\n"
    "\n"
    "Location:\n"
    "    /root/.cargo/git/checkouts/npu-tools-dec42ebd45bb55cf/3f23a71/crates/npu-utils/src/command.rs:122:30"
)

OLDER_SORT = (
    "unsupported EDF node: Cpu(Op::inputs: [T0], Op::outputs: [T1, T4], Op::operator: Some(Operator { "
    'name: "sort#Decompose:3#Kernelized:3", option: Aten { inner: Sort { dim: -1, descending: false } } }))'
)

# Two products of 64 x 64 matrices, one of which has two roles.
EQUAL_SIZES = (
    "failed to lower dfg: conflict between concrete labels: Concrete(0) and Concrete(2)\n"
    "caused by: Caused by:\n"
    "    conflict between concrete labels: Concrete(0) and Concrete(2)"
)

# The host executor, of `x @ a @ b` in float32 with rank 8, factors not rounded.
NEW_SHAPE = (
    "the host executor failed on float32[64, 576], float32[576, 8], float32[8, 576]: failed to execute DFG: Error { msg: "
    '"calculating operator#O97 failed.\\nLowLevelVePassOps (Main)", source: "invalid new shape([] | [0_32=2] | [0_1=32, '
    '2_1=8] | [1_1=640] | [](8)) for [ C: [0_32=2] | P: [0_1=32, 2_1=8] | H: [1_1=640] ] (8)" }'
)
