"""What a GPU did: its kernels by kind of operation, and by the operator that launched them.

The operator is the innermost one of the host around the launch. It decides on the kind, because a
convolution may be a matrix product's kernel; where it tells nothing, the kernel's name does.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Events
from scalebench.trace.intervals import Intervals, intervals, length_s, union
from scalebench.trace.kernel_launches import runtime_calls
from scalebench.trace.names import COMMS_RECORD
from scalebench.trace.phases import OPTIMIZER_STEP
from scalebench.trace.spans import Indices, Spans, named
from scalebench.trace.timeline import Timeline

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

_PRODUCTS = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1), "aten::_int_mm": (0, 1),
}  # fmt: skip
"""Operator → positions of the two matrices among its arguments."""


@dataclass(frozen=True)
class OperatorTime:
    """The kernels that calls of one operator with the same shapes launched.

    Attributes:
        operator: Its name; the kernel's where no operator surrounds the launch.
        shape: Of its tensors, as the trace writes them; empty: not recorded.
        count: Kernels.
        total_s: Sum of their durations.
    """

    kind: WorkKind
    operator: str
    shape: str
    count: int
    total_s: float


@dataclass(frozen=True)
class KindTime:
    """The kernels of one kind.

    Attributes:
        count: Kernels, copies and fills.
        total_s: Union of their intervals.
        share: Of the window.
        flop: Operations of the matrix products whose shapes the trace tells: ``2·m·n·k``.
        flop_s: Sum of the durations of the kernels of these products.
    """

    kind: WorkKind
    count: int
    total_s: float
    share: float
    flop: float = 0.0
    flop_s: float = 0.0

    @property
    def flop_per_s(self) -> float | None:
        """Of the products whose shapes are known; None: of none."""
        return self.flop / self.flop_s if self.flop and self.flop_s else None


@dataclass(frozen=True)
class GpuWork:
    """All that a GPU did in a window; ``kinds`` and ``operators`` begin with the longest."""

    window_s: float
    kinds: tuple[KindTime, ...]
    operators: tuple[OperatorTime, ...]


def gpu_events(events: Events) -> Indices:
    """Return kernels, copies and fills of a GPU's memory."""
    return np.concatenate([events.of(c) for c in ("kernel", "gpu_memcpy", "gpu_memset")])


def work_of(events: Events, timeline: Timeline, within: Intervals | None) -> GpuWork | None:
    """Return what the GPU did; None: the trace has no kernel.

    Args:
        events: Those that count; see `steps.whole_steps`.
        timeline: Of the same events: it says what communicates.
        within: The window; None: the whole trace.
    """
    if not timeline.on_gpu:
        return None
    on_gpu = gpu_events(events)
    operators, in_optimizer = _launched_by(events, on_gpu)
    kinds = _kinds(events, on_gpu, operators, in_optimizer)
    kinds[_communicates(events, on_gpu, timeline)] = _KINDS.index("communication")
    seconds = (events.end_ns[on_gpu] - events.start_ns[on_gpu]) / 1e9
    window_s = length_s(intervals([timeline.extent]) if within is None else within)
    return GpuWork(
        window_s,
        _by_kind(events, on_gpu, operators, kinds, seconds, window_s),
        _by_operator(events, on_gpu, operators, kinds, seconds),
    )


def work_together(ranks: Sequence[GpuWork | None]) -> GpuWork | None:
    """Return the sums over several ranks; None: none of them shows a GPU."""
    known = [work for work in ranks if work is not None]
    window_s = sum(work.window_s for work in known)
    kinds: dict[str, KindTime] = {}
    for one in (kind for work in known for kind in work.kinds):
        sofar = kinds.get(one.kind, KindTime(one.kind, 0, 0.0, 0.0))
        total_s = sofar.total_s + one.total_s
        kinds[one.kind] = KindTime(
            one.kind,
            sofar.count + one.count,
            total_s,
            total_s / window_s if window_s else 0.0,
            sofar.flop + one.flop,
            sofar.flop_s + one.flop_s,
        )
    operators: dict[tuple[str, str, str], OperatorTime] = {}
    for op in (op for work in known for op in work.operators):
        before = operators.get((op.kind, op.operator, op.shape))
        if before is not None:
            count, total_s = before.count + op.count, before.total_s + op.total_s
            op = replace(op, count=count, total_s=total_s)
        operators[op.kind, op.operator, op.shape] = op
    if not known:
        return None
    return GpuWork(window_s, _longest_first(kinds.values()), _longest_first(operators.values()))


def _longest_first(found: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(found, key=lambda one: -one.total_s))


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


def _by_kind(
    events: Events,
    on_gpu: Indices,
    operators: Indices,
    kinds: NDArray[np.int64],
    seconds: NDArray[np.float64],
    window_s: float,
) -> tuple[KindTime, ...]:
    is_product = named(events, [name in _PRODUCTS for name in events.names])
    products = np.unique(operators[(operators >= 0) & (kinds == _KINDS.index("matmul"))])
    flops = {op: _flop(events, op) for op in products[is_product[products]].tolist()}
    known = np.isin(operators, [op for op, flop in flops.items() if flop])
    found = []
    for code in np.unique(kinds):
        chosen = kinds == code
        spans = union(np.column_stack((events.start_ns[on_gpu], events.end_ns[on_gpu]))[chosen])
        told = known & chosen & (_KINDS[code] == "matmul")
        found.append(
            KindTime(
                _KINDS[code],
                int(chosen.sum()),
                length_s(spans),
                length_s(spans) / window_s if window_s else 0.0,
                sum(flops.values()) if told.any() else 0.0,
                float(seconds[told].sum()),
            )
        )
    return _longest_first(found)


def _flop(events: Events, operator: int) -> float:
    """Return the operations of a matrix product; 0: it is none, or its shapes are not told."""
    first, second = _PRODUCTS[events.names[int(events.name[operator])]]
    shapes = events.shapes.get(operator)
    if not isinstance(shapes, list) or len(shapes) <= second:
        return 0.0
    left, right = shapes[first], shapes[second]
    if not all(isinstance(s, list) and 2 <= len(s) <= 3 for s in (left, right)):
        return 0.0
    if any(type(extent) is not int for extent in (*left, *right)):
        return 0.0
    fit = left[-1] == right[-2] and left[:-2] == right[:-2]
    return 2.0 * math.prod(left) * right[-1] if fit else 0.0


def _by_operator(
    events: Events,
    on_gpu: Indices,
    operators: Indices,
    kinds: NDArray[np.int64],
    seconds: NDArray[np.float64],
) -> tuple[OperatorTime, ...]:
    names = events.name[np.where(operators >= 0, operators, on_gpu)]
    texts = {op: str(events.shapes.get(op, "")) for op in np.unique(operators).tolist()}
    sums: dict[tuple[int, int, str], list[Any]] = {}
    rows = zip(kinds.tolist(), names.tolist(), operators.tolist(), seconds.tolist(), strict=True)
    for kind, name, operator, spent in rows:
        one = sums.setdefault((kind, name, texts[operator]), [0, 0.0, operator])
        one[0] += 1
        one[1] += spent
    return _longest_first(
        OperatorTime(
            _KINDS[kind], events.names[name], _written(events.shapes.get(operator)), count, total_s
        )
        for (kind, name, _), (count, total_s, operator) in sums.items()
    )


def _written(shapes: Any) -> str:
    """Write the shapes of an operator's tensors; numbers and missing arguments have none."""
    if not isinstance(shapes, list):
        return ""
    return " ".join("×".join(map(str, one)) for one in shapes if isinstance(one, list) and one)
