"""Calls of a backend that queues kernels (NCCL, XCCL, HCCL, …), and which of them left any.

torch annotates a call on the host (``nccl:all_reduce``) or records it (``record_param_comms``).
What was launched inside it carries it out, whatever its name. A call of which the device shows
nothing was lost by the profiler, unless its group has one rank, it had nothing to do, or NCCL
carried it out together with others.
"""

import re
from collections.abc import Sequence

import numpy as np

from scalebench.trace.events import Events
from scalebench.trace.files.metadata import from_annotation, from_metadata
from scalebench.trace.intervals import Indices, Spans, named
from scalebench.trace.operations import names
from scalebench.trace.operations.kernel_launches import (
    KernelLaunches,
    annotation_on_gpu,
    find_launches,
    runtime_calls,
)
from scalebench.trace.timeline import Calls

_OWN_OF_TORCH = re.compile(r"(void )?at::|.*at::native|triton_")
"""Kernels that copy to or from the buffers of an operation."""


def calls_on_device(events: Events) -> Indices:
    """Return the host's events that stand for calls, without those inside another call."""
    on_host = np.concatenate((events.of("cpu_op"), events.of("user_annotation")))
    calls = on_host[named(events, [names.works_on_device(name) for name in events.names])[on_host]]
    if not len(calls) and not any(name.startswith(names.HOST_BACKENDS) for name in events.names):
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
    on_device = named(events, [names.works_on_device(name) for name in events.names])
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
    backend = names.backend_of(events.names[int(events.name[calls[0]])])
    return backend.upper() if backend else "collective"


def _records(events: Events) -> Sequence[int]:
    return [
        index
        for index, details in events.details.items()
        if events.names[events.name[index]].startswith(names.COMMS_RECORD)
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
        named(events, [names.launches_kernel(n) for n in events.names])[launching]
    ]
    moments = events.start_ns[launching], events.thread[launching]
    launched = np.unique(Spans.of(events, calls).containing(*moments))
    told = [str(details.get("Collective name")) for details in events.details.values()]
    if any("coalesced" in name.lower() for name in (*events.names, *told)):
        return int(np.sum(launched >= 0))
    grouped = [names.kind_of(name.partition(":")[2]) in names.BETWEEN_TWO for name in events.names]
    return int(np.sum(~named(events, grouped)[calls] | np.isin(calls, launched)))
