"""What a GPU did: its kernels by kind of operation, and by the operator that launched them.

The operator is the innermost one of the host around the launch. It decides on the kind, because a
convolution may be a matrix product's kernel; where it tells nothing, the kernel's name does.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scalebench.records.measured.trace import TracedProduct
from scalebench.trace.events import Events, Indices, Spans, Timeline, intervals, named, union
from scalebench.trace.operations.communication_kernels import COMMS_RECORD, PRODUCTS
from scalebench.trace.operations.kernel_launches import OPTIMIZER_STEP, runtime_calls

WorkKind = Literal[
    "matmul",
    "attention",
    "convolution",
    "normalisation",
    "elementwise",
    "optimizer",
    "copy",
    "communication",
    "other",
]
_KINDS: tuple[WorkKind, ...] = get_args(WorkKind)

# The first that fits decides. Sources: torch's native_functions.yaml; kernels of cuBLAS, cuDNN,
# CUTLASS, rocBLAS (Cijk), nvJet, Inductor and FlashAttention as they stand in public traces.
_OPERATORS: tuple[tuple[WorkKind, str], ...] = (
    ("attention", r"[aA]ttention|flash_attn|fmha"),
    ("convolution", r"[cC]onv(olution|_|\d)"),
    ("normalisation", r"([lL]ayer|[bB]atch|[gG]roup|[iI]nstance|[rR](MS|ms))_?[nN]orm"),
    ("matmul", r"::_?((add)?mm|(add|badd)?bmm|(add)?mv|dot|matmul|linear|int_mm)$"
               r"|(scaled|grouped)_mm"),
    ("optimizer", r"::_fused_(adam|sgd|adagrad)"),
)  # fmt: skip
_KERNELS: tuple[tuple[WorkKind, str], ...] = (
    ("elementwise", r"triton_poi_"),
    ("normalisation", r"triton_(red|per)_.*norm"),
    ("other", r"triton_(red|per)_"),
    ("attention", r"flash|fmha|attention|attn|_mha_|sdpa"),
    ("convolution", r"conv(olution|_|\d|olve)|wgrad|dgrad|fprop|winograd|scudnn|nchwtonhwc"
                    r"|nhwctonchw|im2col|col2im"),
    ("matmul", r"(?<!fb)gemm|gemv|cijk_|nvjet|splitk|matmul|cutlass::device_kernel|triton_tem_"),
    ("normalisation", r"(layer|batch|group|instance|rms)_?norm|cudnn::bn_|bn_(fw|bw)"),
    ("optimizer", r"fused_?(adam|sgd|lamb|adagrad)|(adam|sgd|lamb|lars)\w*functor"),
    ("elementwise", r"elementwise|pointwise"),
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """The kernels, copies and fills that calls of one operator with the same shapes launched.

    Attributes:
        operator: Its name; the kernel's where no operator surrounds the launch; empty: several.
        shape: Of its tensors; empty: not recorded, or several.
        total_s: Sum of the durations.
        flop: ``2·m·n·k`` of matrix products whose shapes the trace tells.
        flop_s: The part of ``total_s`` that these took.
    """

    kind: WorkKind
    operator: str
    shape: str
    count: int
    total_s: float
    flop: float = 0.0
    flop_s: float = 0.0

    @property
    def flop_per_s(self) -> float | None:
        """Of the products whose shapes are known; None: of none."""
        return self.flop / self.flop_s if self.flop and self.flop_s else None


def gpu_events(events: Events) -> Indices:
    """Return kernels, copies and fills of a GPU's memory."""
    return np.concatenate([events.of(c) for c in ("kernel", "gpu_memcpy", "gpu_memset")])


def work_of(events: Events, timeline: Timeline) -> tuple[Work, ...] | None:
    """Return what the GPU did, by operator, the longest first; None: the trace has no kernel.

    ``events``: those that count; see `steps.whole_steps`. ``timeline``, of the same events, says
    what communicates.
    """
    if not timeline.on_gpu:
        return None
    on_gpu = gpu_events(events)
    operators, in_optimizer = _launched_by(events, on_gpu)
    kinds = _kinds(events, on_gpu, operators, in_optimizer)
    kinds[_communicates(events, on_gpu, timeline)] = _KINDS.index("communication")
    seconds = (events.end_ns[on_gpu] - events.start_ns[on_gpu]) / 1e9
    names = events.name[np.where(operators >= 0, operators, on_gpu)]
    texts = {op: str(events.shapes.get(op, "")) for op in np.unique(operators).tolist()}
    flops = _flops(events, operators[kinds == _KINDS.index("matmul")])
    found: dict[tuple[int, int, str], list[Any]] = {}
    counted: set[int] = set()
    rows = zip(kinds.tolist(), names.tolist(), operators.tolist(), seconds.tolist(), strict=True)
    for kind, name, operator, spent in rows:
        row = found.setdefault((kind, name, texts[operator]), [operator, 0, 0.0, 0.0, 0.0])
        row[1] += 1
        row[2] += spent
        if _KINDS[kind] == "matmul" and operator in flops:
            row[3] += 0.0 if operator in counted else flops[operator]
            row[4] += spent
            counted.add(operator)
    return summed(
        Work(_KINDS[kind], events.names[name], _written(events.shapes.get(operator)), *sums)
        for (kind, name, _), (operator, *sums) in found.items()
    )


def summed(rows: Iterable[Work], by_kind: bool = False) -> tuple[Work, ...]:
    """Return the sums over what has the same operator and shape, or kind; the longest first."""
    found: dict[tuple[str, str, str], Work] = {}
    for row in rows:
        operator, shape = ("", "") if by_kind else (row.operator, row.shape)
        before = found.get((row.kind, operator, shape), Work(row.kind, operator, shape, 0, 0.0))
        found[row.kind, operator, shape] = replace(
            before,
            count=before.count + row.count,
            total_s=before.total_s + row.total_s,
            flop=before.flop + row.flop,
            flop_s=before.flop_s + row.flop_s,
        )
    return tuple(sorted(found.values(), key=lambda row: -row.total_s))


def _launched_by(events: Events, on_gpu: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the operator around each launch, -1: none; and whether an optimizer's step was."""
    moments, threads = runtime_calls(events, on_gpu)
    steps = named(events, [name.startswith(OPTIMIZER_STEP) for name in events.names])
    marks = np.concatenate((events.of("user_annotation"), events.of("cpu_op")))
    records = named(events, [name == COMMS_RECORD for name in events.names])
    ops = events.of("cpu_op")
    operators = Spans.of(events, ops[~records[ops]]).containing(moments, threads)
    stepping = Spans.of(events, marks[steps[marks]]).containing(moments, threads) >= 0
    return operators, stepping


def _kinds(
    events: Events, on_gpu: Indices, operators: Indices, in_optimizer: NDArray[np.bool_]
) -> NDArray[np.int64]:
    names, is_kernel = events.names, np.isin(on_gpu, events.of("kernel"))
    operator_names = np.where(operators >= 0, events.name[operators], -1)
    keys = np.column_stack((events.name[on_gpu], operator_names, in_optimizer))
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    found = np.array(
        [
            _KINDS.index(_kind(names[kernel], names[op] if op >= 0 else "", bool(stepping)))
            for kernel, op, stepping in distinct.tolist()
        ],
        dtype=np.int64,
    )
    return np.where(is_kernel, found[which.reshape(-1)], _KINDS.index("copy"))


def _kind(kernel: str, operator: str, in_optimizer: bool) -> WorkKind:
    """Return the kind of a kernel that does not communicate."""
    if operator.startswith("triton_"):
        operator = ""  # Inductor's own: named after all that was fused into it
    own = next((kind for kind, words in _KERNELS if re.search(words, kernel.lower())), None)
    asked = next((kind for kind, words in _OPERATORS if re.search(words, operator)), None)
    kind: WorkKind = asked or own or "other"
    return "optimizer" if in_optimizer and kind in ("elementwise", "other") else kind


def _communicates(events: Events, on_gpu: Indices, timeline: Timeline) -> NDArray[np.bool_]:
    """Return which begin inside an operation of their stream."""
    answer = np.zeros(len(on_gpu), dtype=bool)
    streams = events.thread[on_gpu]
    for stream in {op.stream for op in timeline.operations}:
        ours = [(o.start_ns, o.end_ns) for o in timeline.operations if o.stream == stream]
        spans = union(intervals(ours))
        if len(spans):
            starts = events.start_ns[on_gpu]
            at = np.maximum(np.searchsorted(spans[:, 0], starts, side="right") - 1, 0)
            inside = (starts >= spans[at, 0]) & (starts < spans[at, 1])
            answer |= inside & (streams == stream)
    return answer


def _flops(events: Events, operators: Indices) -> dict[int, float]:
    """Return the operations of the matrix products whose shapes the trace tells."""
    is_product = named(events, [name in PRODUCTS for name in events.names])
    products = np.unique(operators[operators >= 0])
    found = {op: _flop(events, op) for op in products[is_product[products]].tolist()}
    return {op: flop for op, flop in found.items() if flop}


def _flop(events: Events, operator: int) -> float:
    """Return the operations of a matrix product; 0: its shapes are not told."""
    found = _matrices(events, operator)
    return 2.0 * math.prod(found[0]) * found[1][-1] if found else 0.0


def _matrices(events: Events, operator: int) -> tuple[list[int], list[int]] | None:
    """Return the shapes of the two matrices of a product; None: they are not told."""
    shapes = _both(events, operator, events.shapes)
    if shapes is None or not all(isinstance(s, list) and 2 <= len(s) <= 3 for s in shapes):
        return None
    left, right = shapes
    if any(type(extent) is not int for extent in (*left, *right)):
        return None
    return (left, right) if left[-1] == right[-2] and left[:-2] == right[:-2] else None


def _both(events: Events, operator: int, recorded: dict[int, Any]) -> tuple[Any, Any] | None:
    """Return what a trace says of the two matrices of a product; None: nothing."""
    first, second = PRODUCTS[events.names[int(events.name[operator])]]
    values = recorded.get(operator)
    if not isinstance(values, list) or len(values) <= second:
        return None
    return values[first], values[second]


_HALF = ("c10::BFloat16", "c10::Half")


def products_of(events: Events) -> list[TracedProduct]:
    """Return the products of two matrices in 16 bits whose shapes the trace tells, by shape."""
    kernels = events.of("kernel")
    operators, _ = _launched_by(events, kernels)
    spent: dict[int, float] = {}
    durations = (events.end_ns - events.start_ns)[kernels] / 1e9
    for operator, seconds in zip(operators.tolist(), durations.tolist(), strict=True):
        if operator in events.types:
            spent[operator] = spent.get(operator, 0.0) + seconds
    found = []
    for operator, seconds in spent.items():
        matrices, types = _matrices(events, operator), _both(events, operator, events.types)
        if matrices and types and seconds > 0 and all(one in _HALF for one in types):
            *batch, m, k = matrices[0]
            if batch:
                continue
            found.append(TracedProduct(m=m, n=matrices[1][-1], k=k, count=1, total_s=seconds))
    return summed_products(found)


def summed_products(products: Iterable[TracedProduct]) -> list[TracedProduct]:
    """Return the sums over products of the same shape."""
    found: dict[tuple[int, int, int], TracedProduct] = {}
    for one in products:
        before = found.get((one.m, one.n, one.k))
        if before is not None:
            total_s = before.total_s + one.total_s
            one = one.model_copy(update={"count": before.count + one.count, "total_s": total_s})
        found[one.m, one.n, one.k] = one
    return list(found.values())


def _written(shapes: Any) -> str:
    """Write the shapes of an operator's tensors; numbers and missing arguments have none."""
    if not isinstance(shapes, list):
        return ""
    return " ".join("×".join(map(str, one)) for one in shapes if isinstance(one, list) and one)
