"""What the host was doing when it launched a kernel, and which calls of a backend left none.

torch annotates a call on the host (``nccl:all_reduce``) or records it (``record_param_comms``).
What was launched inside it carries it out, whatever its name. A call of which the device shows
nothing was lost by the profiler, unless its group has one rank, it had nothing to do, or NCCL
carried it out together with others. Forward, backward, optimizer: by torch's own marks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Calls, Events, Indices, Intervals, Phase, Spans, named, union
from scalebench.trace.files.metadata import from_annotation, from_metadata
from scalebench.trace.operations import communication_kernels
from scalebench.trace.operations.communication_kernels import (
    COMMS_RECORD,
    backend_of,
    works_on_device,
)

NEVER = np.iinfo(np.int64).min
"""In place of a moment that the trace does not tell; earlier than any."""


@dataclass(frozen=True)
class Launch:
    """Events of the host around the launch of one kernel; None: there is none."""

    annotation: int | None
    request: int | None
    record: int | None


@dataclass(frozen=True)
class KernelLaunches:
    """The host's side of some kernels, one entry per kernel.

    Attributes:
        asked_ns: When the host asked for it, `NEVER` where the trace does not tell. int64 [k].
        annotation: Index of torch's annotation around the launch (``nccl:all_reduce``); -1.
        request: Index of the ``c10d::`` operator around the launch; -1.
        record: Index of the event that carries the collective's metadata; -1.
    """

    asked_ns: NDArray[np.int64]
    annotation: Indices
    request: Indices
    record: Indices

    def of(self, position: int) -> Launch:
        """Return what surrounds the launch of one kernel."""
        found = (self.annotation[position], self.request[position], self.record[position])
        return Launch(*(int(index) if index >= 0 else None for index in found))


def find_launches(events: Events, kernels: Indices) -> KernelLaunches:
    """Find what surrounded the launch of each kernel.

    The runtime call with the kernel's correlation tells the moment and the thread. Where no such
    call was traced, the event with the kernel's ``External id`` does.
    """
    on_host = np.zeros(len(events), dtype=bool)
    on_host[np.concatenate((events.of("cpu_op"), events.of("user_annotation")))] = True

    def spans(wanted: list[bool]) -> Spans:
        return Spans.of(events, np.flatnonzero(named(events, wanted) & on_host))

    families = (
        spans([backend_of(name) is not None for name in events.names]),
        *(spans([n.startswith(begin) for n in events.names]) for begin in ("c10d::", COMMS_RECORD)),
    )
    moments, threads = runtime_calls(events, kernels)
    by_call = [family.containing(moments, threads) for family in families]
    moments, threads = _external_events(events, kernels, moments, threads, on_host)
    by_id = [family.containing(moments, threads) for family in families]
    found_by_call = np.maximum.reduce(by_call) >= 0
    annotation, request, record = (
        np.where(found_by_call, one, other) for one, other in zip(by_call, by_id, strict=True)
    )
    asked = np.where(request >= 0, events.start_ns[request], moments)
    annotation = np.where(annotation >= 0, annotation, annotation_on_gpu(events, kernels))
    return KernelLaunches(asked, annotation, request, record)


def collectives_by_copies(events: Events, copies: Indices, kernels: Indices) -> tuple[Indices, ...]:
    """Return the copies with which NCCL carried out an operation, one array for each operation.

    They were asked for inside NCCL's annotation, and no kernel of NCCL was. So it is with a single
    rank, and with copy engines (NCCL 2.28 and later). Next to a kernel, torch copies to or from the
    operation's buffers.
    """
    on_device = [works_on_device(name) for name in events.names]
    on_host = np.concatenate((events.of("cpu_op"), events.of("user_annotation")))
    annotations = Spans.of(events, on_host[named(events, on_device)[on_host]])
    around = annotations.containing(*runtime_calls(events, copies))
    with_kernel = annotations.containing(*runtime_calls(events, kernels))
    found = np.setdiff1d(around[around >= 0], with_kernel)
    return tuple(copies[around == annotation] for annotation in found)


def runtime_calls(events: Events, kernels: Indices) -> tuple[Indices, Indices]:
    """Return moment and thread of the calls that launched kernels or copies.

    The moment is `NEVER` where no such call was traced.
    """
    calls = events.of("runtime")
    calls = calls[events.correlation[calls] > 0]
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    moments = np.full(len(kernels), NEVER, dtype=np.int64)
    threads = np.zeros(len(kernels), dtype=np.int64)
    if len(calls):
        known = events.correlation[calls]
        position = np.minimum(np.searchsorted(known, events.correlation[kernels]), len(known) - 1)
        found = known[position] == events.correlation[kernels]
        moments[found] = events.start_ns[calls[position[found]]]
        threads[found] = events.thread[calls[position[found]]]
    return moments, threads


def _external_events(
    events: Events, kernels: Indices, moments: Indices, threads: Indices, on_host: NDArray[np.bool_]
) -> tuple[Indices, Indices]:
    """Return moment and thread of the host's events that share the kernels' ``External id``.

    Old traces count operators and kernels apart, so that equal numbers mean nothing: an event
    that does not contain the launch is another's.
    """
    moments, threads = moments.copy(), threads.copy()
    hosts = {
        str(details["External id"]): index
        for index, details in events.details.items()
        if "External id" in details and on_host[index]
    }
    for position, kernel in enumerate(kernels):
        identity = str(events.details.get(int(kernel), {}).get("External id"))
        host = hosts.get(identity)
        if host is None or identity == str(events.correlation[kernel]):
            continue
        launched = moments[position]
        if launched == NEVER or events.start_ns[host] <= launched <= events.end_ns[host]:
            moments[position] = events.start_ns[host]
            threads[position] = events.thread[host]
    return moments, threads


def annotation_on_gpu(events: Events, kernels: Indices) -> Indices:
    """Return the annotations that Kineto projected onto the kernels' streams."""
    wanted = named(events, [backend_of(name) is not None for name in events.names])
    projected = events.of("gpu_user_annotation")
    return Spans.of(events, projected[wanted[projected]]).containing(
        events.start_ns[kernels], events.thread[kernels]
    )


_OWN_OF_TORCH = re.compile(r"(void )?at::|.*at::native|triton_")
"""Kernels that copy to or from the buffers of an operation."""


def calls_on_device(events: Events) -> Indices:
    """Return the host's events that stand for calls, without those inside another call."""
    on_host = np.concatenate((events.of("cpu_op"), events.of("user_annotation")))
    calls = on_host[
        named(events, [communication_kernels.works_on_device(name) for name in events.names])[
            on_host
        ]
    ]
    if not len(calls) and not any(
        name.startswith(communication_kernels.HOST_BACKENDS) for name in events.names
    ):
        calls = np.array(_records(events), dtype=np.int64)
    outer = Spans.of(events, calls).containing(events.start_ns[calls] - 1, events.thread[calls])
    return calls[(outer < 0) | (events.end_ns[outer] < events.end_ns[calls])]


def launched_by_calls(events: Events, kernels: Indices, known: Indices) -> Indices:
    """Return the kernels that carry out a call of which no kernel is known by its name.

    The names of ``kernels`` do not tell that they communicate, those of ``known`` do.
    """
    calls = Spans.of(events, _between_several(events))
    around = calls.containing(*runtime_calls(events, kernels))
    shown, shown_known = annotation_on_gpu(events, kernels), annotation_on_gpu(events, known)
    on_device = named(
        events, [communication_kernels.works_on_device(name) for name in events.names]
    )
    if not len(calls.indices) and not np.any(shown >= 0):
        return kernels[:0]
    described = np.array([int(kernel) in events.details for kernel in kernels], dtype=bool)
    by_id = np.flatnonzero(described & (around < 0))
    around[by_id] = _calls_of(find_launches(events, kernels[by_id]), calls)
    carried_out = calls.containing(*runtime_calls(events, known))
    is_own = [_OWN_OF_TORCH.match(name) is not None for name in events.names]
    asked = (around >= 0) & ~np.isin(around, carried_out)
    asked |= (around < 0) & (shown >= 0) & on_device[shown] & ~np.isin(shown, shown_known)
    return kernels[asked & ~named(events, is_own)[kernels]]


def count_calls(events: Events, launches: KernelLaunches) -> Calls:
    """Count the calls between several ranks, and those of which the device shows nothing."""
    calls = _between_several(events)
    if not len(calls):
        return Calls()
    tied = _calls_of(launches, Spans.of(events, calls))
    unseen = np.setdiff1d(calls, tied)
    num_unseen = max(len(unseen) - int(np.sum(tied < 0)), 0)
    if any("BeginCapture" in name for name in events.names):
        num_unseen = 0  # launches that are captured run later, or never
    elif len(launches.asked_ns):
        num_unseen = min(num_unseen, _num_that_needed_a_kernel(events, unseen))
    return Calls(len(calls), num_unseen, name_of_backend(events, calls))


def name_of_backend(events: Events, calls: Indices) -> str:
    """Return what to call the backend of some calls: ``NCCL``, or ``collective``: not known."""
    backend = communication_kernels.backend_of(events.names[int(events.name[calls[0]])])
    return backend.upper() if backend else "collective"


def _records(events: Events) -> Sequence[int]:
    return [
        index
        for index, details in events.details.items()
        if events.names[events.name[index]].startswith(communication_kernels.COMMS_RECORD)
        and from_metadata(details).kind != "unknown"
    ]


def _calls_of(launches: KernelLaunches, calls: Spans) -> Indices:
    """Return the call around what the host said of each launch; -1: none."""
    told = np.where(launches.annotation >= 0, launches.annotation, launches.record)
    told = np.where(np.isin(told, calls.events.of("gpu_user_annotation")), -1, told)
    around = calls.containing(calls.events.start_ns[told], calls.events.thread[told])
    return np.where(told >= 0, around, -1)


def _between_several(events: Events) -> Indices:
    """Return the calls that need a kernel: not those of a group of one, and not those of nothing.

    The size of the group stands in a record around or inside a call.
    """
    calls = calls_on_device(events)
    calls = calls[[not _is_empty(events, int(call)) for call in calls]]
    if events.world_size == 1:
        return calls[:0]
    records = [i for i in _records(events) if from_metadata(events.details[i]).group_size == 1]
    alone = np.array(records, dtype=np.int64)
    inside = Spans.of(events, alone).containing(events.start_ns[calls], events.thread[calls]) >= 0
    around = Spans.of(events, calls).containing(events.start_ns[alone], events.thread[alone])
    return np.setdiff1d(calls[~inside], around)


def _is_empty(events: Events, call: int) -> bool:
    """Tell whether a call was given tensors without elements, as an uneven all-to-all may be."""
    details = events.details.get(call, {})
    annotated = from_annotation(events.names[int(events.name[call])], details, group_size=1)
    facts = from_metadata(details).or_else(annotated)
    return facts.num_bytes == 0 and facts.kind != "barrier"


def _num_that_needed_a_kernel(events: Events, calls: Indices) -> int:
    """Return how many of the calls cannot have been carried out by the kernel of another.

    NCCL launches one kernel for several calls between ``ncclGroupStart`` and ``ncclGroupEnd``. So
    torch has it do coalesced collectives, and sends and receives.
    """
    launching = events.of("runtime")
    launching = launching[
        named(events, [communication_kernels.launches_kernel(n) for n in events.names])[launching]
    ]
    moments = events.start_ns[launching], events.thread[launching]
    launched = np.unique(Spans.of(events, calls).containing(*moments))
    told = [str(details.get("Collective name")) for details in events.details.values()]
    if any("coalesced" in name.lower() for name in (*events.names, *told)):
        return int(np.sum(launched >= 0))
    grouped = [
        communication_kernels.kind_of(name.partition(":")[2]) in communication_kernels.BETWEEN_TWO
        for name in events.names
    ]
    return int(np.sum(~named(events, grouped)[calls] | np.isin(calls, launched)))


_PHASES: tuple[Phase, ...] = ("unknown", "forward", "backward", "optimizer")

_EVALUATE = "autograd::engine::evaluate_function"
OPTIMIZER_STEP = "Optimizer.step"
_ZERO_GRAD = "Optimizer.zero_grad"


@dataclass(frozen=True)
class Phases:
    """The moments at which the phase changed, in their order.

    Attributes:
        starts_ns: int64 [m], rising.
        codes: Position in ``_PHASES``. int8 [m].
    """

    starts_ns: NDArray[np.int64]
    codes: NDArray[np.int8]

    def at(self, moments: Indices) -> list[Phase]:
        """Return the phase of each moment: that of the last mark at or before it."""
        position = np.searchsorted(self.starts_ns, moments, side="right")
        return [_PHASES[code] for code in np.concatenate(([0], self.codes))[position]]


def phases_of(events: Events) -> Phases:
    """Find the phases of one rank.

    Backward begins with a function that the autograd engine evaluates, or an annotation that
    speaks of backward (FSDP gathers there before the engine evaluates anything); the optimizer
    with torch's ``Optimizer.step#…``; forward with an annotation that speaks of forward, or an
    ``aten::`` operator that lies in none of these nor in a collective.
    """
    host = (events.of("cpu_op"), events.of("user_annotation"))
    on_host = np.zeros(len(events), dtype=bool)
    on_host[np.concatenate(host)] = True

    def where(wanted: list[bool]) -> Indices:
        return np.flatnonzero(named(events, wanted) & on_host)

    names = events.names
    optimizer = where([name.startswith(OPTIMIZER_STEP) for name in names])
    resetting = where([name.startswith(_ZERO_GRAD) for name in names])
    backward = where([name.startswith(_EVALUATE) or _speaks_of(name, "back") for name in names])
    collective = where([backend_of(n) is not None or n.startswith("c10d::") for n in names])
    forward = where([name.startswith("aten::") or _speaks_of(name, "for") for name in names])

    not_forward = union(*(_spans(events, indices) for indices in (optimizer, resetting, backward)))
    forward = forward[~_inside(events.start_ns[forward], not_forward)]
    forward = forward[~_inside_on_thread(events, forward, collective)]
    marks = [(forward, 1), (backward, 2), (optimizer, 3)]
    starts = np.concatenate([events.start_ns[indices] for indices, _ in marks])
    codes = np.concatenate([np.full(len(i), code, dtype=np.int8) for i, code in marks])
    order = np.lexsort((codes, starts))
    return Phases(starts[order], codes[order])


def _speaks_of(name: str, phase: str) -> bool:
    """Return whether an annotation names this one phase, and not both."""
    if "::" in name.removeprefix("FSDP::") or name.startswith("<"):
        return False
    return set(re.findall(r"(for|back)ward(?![a-z0-9])", name.lower())) == {phase}


def _spans(events: Events, indices: Indices) -> Intervals:
    return np.column_stack((events.start_ns[indices], events.end_ns[indices]))


def _inside(moments: Indices, spans: Intervals) -> NDArray[np.bool_]:
    """Return which moments lie in a tidy set, both ends included."""
    if len(spans) == 0:
        return np.zeros(len(moments), dtype=bool)
    position = np.searchsorted(spans[:, 0], moments, side="right") - 1
    inside: NDArray[np.bool_] = moments <= spans[np.maximum(position, 0), 1]
    return inside & (position >= 0)


def _inside_on_thread(events: Events, inner: Indices, outer: Indices) -> NDArray[np.bool_]:
    """Return which of ``inner`` begin while one of ``outer`` runs on the same thread."""
    answer = np.zeros(len(inner), dtype=bool)
    for thread in np.unique(events.thread[outer]):
        mine = events.thread[inner] == thread
        spans = union(_spans(events, outer[events.thread[outer] == thread]))
        answer[mine] = _inside(events.start_ns[inner[mine]], spans)
    return answer
