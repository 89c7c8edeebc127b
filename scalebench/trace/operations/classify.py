"""From events to a rank's timeline: what is communication, of which kind, what is compute.

Operations of a group of one rank, for which NCCL launches no kernel.

An in-place sum over one rank is there already, so the GPU's part of a trace shows nothing of it.
The host's does: torch records every operation of a process group with its kind and size
(``record_param_comms``). Such an operation takes no time, and its place is where it would have
begun: NCCL's stream waits for what the host had asked the current stream to do before, so that is
when the last kernel or copy asked for until then is over.

With GPU kernels in the trace, communication is the kernels of libraries that communicate, what a
call of a backend launched, and the copies with which it carries out an operation instead; compute
is every other kernel. Without,
communication is torch's annotations of a CPU backend (``gloo:all_reduce``) and compute is the
``aten::`` operators of all threads, but for those that gloo's own threads run inside a collective,
to copy its buffers, and for the time in which an operator itself waits for a collective, as those
of DTensor do; autograd's and c10d's own wrappers are left out, because waiting hides inside them.
Kernels without one of NCCL's among them, but with gloo at work (several ranks on one GPU):
communication is gloo's annotations. What a group of one rank does with nothing on the GPU is taken
from torch's records of it.

Kernels that may be communication though nothing says it for certain: name → seconds.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.trace.events import (
    Calls,
    Events,
    Indices,
    Intervals,
    Operation,
    Phase,
    Spans,
    Timeline,
    named,
    subtract,
    union,
)
from scalebench.trace.files.metadata import Facts, from_annotation, from_metadata, from_request
from scalebench.trace.operations import communication_kernels, kernel_launches
from scalebench.trace.operations.communication_kernels import (
    COMMS_RECORD,
    DECODE,
    ENCODE,
    carries_data,
    is_communication_kernel,
    is_known_to_compute,
    kind_of_kernel,
    may_be_communication,
)
from scalebench.trace.operations.kernel_launches import (
    NEVER,
    KernelLaunches,
    Phases,
    phases_of,
    runtime_calls,
)
from scalebench.trace.operations.matching import match_requests


def silent_operations(
    events: Events, launches: KernelLaunches, phases: Phases
) -> tuple[Operation, ...]:
    """Return the operations of groups of one rank that no kernel carried out.

    ``events`` are of one rank, with a GPU. Records of ``launches`` are not silent.
    """
    records = _records(events, {int(record) for record in launches.record})
    facts = [from_metadata(events.details[record]) for record in records]
    chosen = [
        (record, fact)
        for record, fact in zip(records, facts, strict=True)
        if fact.kind != "unknown" and fact.group_size == 1
    ]
    asked_ns = np.array([events.start_ns[record] for record, _ in chosen], dtype=np.int64)
    begins_ns = _when_ready(events, [record for record, _ in chosen])
    found = [
        _operation(events, record, fact, int(begin), phase)
        for (record, fact), begin, phase in zip(chosen, begins_ns, phases.at(asked_ns), strict=True)
    ]
    return tuple(sorted(found, key=lambda operation: operation.start_ns))


def _records(events: Events, launched: set[int]) -> list[int]:
    """Return the host's records of operations, in the order of time, without the launched ones."""
    is_record = named(events, [name.startswith(COMMS_RECORD) for name in events.names])
    on_host = np.concatenate((events.of("cpu_op"), events.of("user_annotation")))
    found = on_host[is_record[on_host]]
    found = found[np.argsort(events.start_ns[found], kind="stable")]
    return [i for i in map(int, found) if i not in launched and i in events.details]


def _when_ready(events: Events, records: Sequence[int]) -> list[int]:
    """Return when the device had done what the stream was asked for before each record.

    The stream is that of the thread's last launch before it. Where it had launched nothing, the
    operation was ready when the host asked.
    """
    work = np.concatenate([events.of(c) for c in ("kernel", "gpu_memcpy", "gpu_memset")])
    asked_ns, threads = runtime_calls(events, work)
    known = asked_ns != NEVER
    work, asked_ns, threads = work[known], asked_ns[known], threads[known]
    order = np.argsort(asked_ns, kind="stable")
    work, asked_ns, threads = work[order], asked_ns[order], threads[order]
    return [_ready_at(events, record, work, asked_ns, threads) for record in records]


def _ready_at(
    events: Events, record: int, work: Indices, asked_ns: Indices, threads: Indices
) -> int:
    moment = int(events.start_ns[record])
    before = slice(0, int(np.searchsorted(asked_ns, moment, side="right")))
    own = work[before][threads[before] == events.thread[record]]
    if len(own) == 0:
        return moment
    stream = events.thread[own[-1]]
    on_stream = work[before][events.thread[work[before]] == stream]
    return max(moment, int(events.end_ns[on_stream].max()))


def _operation(events: Events, record: int, facts: Facts, begin: int, phase: Phase) -> Operation:
    return Operation(
        kind=facts.kind,
        name=events.names[int(events.name[record])],
        start_ns=begin,
        end_ns=begin,
        enqueued_ns=int(events.start_ns[record]),
        num_bytes=facts.num_bytes,
        dtype=facts.dtype,
        group=facts.group,
        group_size=facts.group_size,
        sequence=facts.sequence,
        phase=phase,
        stream=int(events.thread[record]),
    )


def called_like_communication(events: Events, kernels: Indices) -> dict[str, float]:
    """Return those of the kernels, which count as computation, whose name suggests it."""
    return _seconds(events, kernels, named(events, [may_be_communication(n) for n in events.names]))


def on_their_own_stream(events: Events, kernels: Indices) -> dict[str, float]:
    """Return those that never run on a stream of kernels that are known to compute.

    Where none is known to, that is the stream with the most different kernels.
    """
    streams, names = events.thread[kernels], events.name[kernels]
    computes = named(events, [is_known_to_compute(name) for name in events.names])
    busy = np.unique(streams[computes[kernels]])
    if not len(busy):
        of_stream = [(len(np.unique(names[streams == s])), s) for s in np.unique(streams)]
        busy = np.array([max(of_stream)[1]] if of_stream else [])
    elsewhere = names[np.isin(streams, busy)]
    return _seconds(events, kernels, ~np.isin(events.name, elsewhere))


def _seconds(events: Events, kernels: Indices, wanted: NDArray[np.bool_]) -> dict[str, float]:
    chosen = kernels[wanted[kernels]]
    seconds = (events.end_ns - events.start_ns)[chosen] / 1e9
    return {
        events.names[code]: float(seconds[events.name[chosen] == code].sum())
        for code in np.unique(events.name[chosen])
    }


_STEP = "ProfilerStep#"
_OWN_MARK = "scalebench."
_WAIT = "_c10d_functional::wait_tensor"


def timeline_of(events: Events, communication: re.Pattern[str] | None = None) -> Timeline:
    """Return what one rank did when.

    Kernels in whose name ``communication`` is found communicate, whatever else is known.

    Raises:
        UsageError: The rank used NCCL but its GPU was not traced, so that neither communication
            nor computation can be seen.
    """
    kernels = events.of("kernel")
    copying = np.concatenate((events.of("gpu_memcpy"), events.of("gpu_memset")))
    on_gpu = len(kernels) > 0
    if on_gpu:
        chosen = named(events, [_matches(communication, name) for name in events.names])
        is_comm = named(events, [is_communication_kernel(name) for name in events.names]) | chosen
        is_comm[
            kernel_launches.launched_by_calls(
                events, kernels[~is_comm[kernels]], kernels[is_comm[kernels]]
            )
        ] = True
        communicating = _by_start(events, kernels[is_comm[kernels]])
        carried_out = kernel_launches.collectives_by_copies(
            events, events.of("gpu_memcpy"), communicating
        )
        copying = np.setdiff1d(copying, np.concatenate((copying[:0], *carried_out)))
        alone = [np.array([kernel]) for kernel in communicating.tolist()]
        carriers = sorted(
            [*alone, *carried_out], key=lambda group: int(events.start_ns[group].min())
        )
        launches = kernel_launches.find_launches(events, _firsts(events, carriers))
        calls = kernel_launches.count_calls(events, launches)
        operations = _gpu_operations(events, carriers, launches)
        if not operations:
            operations = _host_operations(events)
        computing = kernels[~is_comm[kernels]]
        compute = union(_spans(events, computing))
    else:
        _refuse_unseen_gpu(events)
        operations = _host_operations(events)
        is_aten = named(events, [name.startswith("aten::") for name in events.names])
        ops = events.of("cpu_op")
        computing = _not_copying_for_gloo(events, ops[is_aten[ops]])
        compute = _without_waiting(events, computing)
    return Timeline(
        operations=operations,
        compute=compute,
        copies=union(_spans(events, copying)),
        steps=_spans(events, _by_start(events, _annotations(events, _STEP))),
        annotations=_own_marks(events) | (_codec_kernels(events, computing) if on_gpu else {}),
        unknown=called_like_communication(events, computing) if on_gpu else {},
        apart=on_their_own_stream(events, computing) if on_gpu else {},
        num_early=_num_early(events, kernels),
        calls=calls if on_gpu else _calls_without_marks(events, operations),
        num_named=int(np.sum(chosen[kernels])) if on_gpu else 0,
        extent=_extent(events),
        on_gpu=on_gpu,
        rank=events.rank,
        world_size=events.world_size,
        num_groups=len(events.groups),
    )


def _num_early(events: Events, kernels: Indices) -> int:
    """Return how many kernels begin before the call that launched them."""
    asked_ns, _ = kernel_launches.runtime_calls(events, kernels)
    return int(np.sum(events.start_ns[kernels] < asked_ns))


def _not_copying_for_gloo(events: Events, operators: Indices) -> Indices:
    """Return the operators without those that are a part of a collective.

    A collective's annotation stands on the thread that carries it out; that of a send or receive
    on the thread that asked for it, which may compute meanwhile.
    """
    collectives = _annotations(events, *communication_kernels.OWN_THREAD_BACKENDS)
    between_two = [
        communication_kernels.kind_of(name.partition(":")[2]) in communication_kernels.BETWEEN_TWO
        for name in events.names
    ]
    collectives = collectives[~named(events, between_two)[collectives]]
    around = Spans.of(events, collectives).containing(
        events.start_ns[operators], events.thread[operators]
    )
    return operators[around < 0]


def _without_waiting(events: Events, operators: Indices) -> Intervals:
    """Return when operators run, without the time in which their own thread waits inside them.

    An operator on a DTensor brings its arguments into place first: it waits for the collective.
    """
    ops = events.of("cpu_op")
    waits = ops[named(events, [name == _WAIT for name in events.names])[ops]]
    waiting = np.unique(events.thread[waits])
    busy = [_spans(events, operators[~np.isin(events.thread[operators], waiting)])]
    for thread in waiting:
        mine = union(_spans(events, operators[events.thread[operators] == thread]))
        busy.append(subtract(mine, union(_spans(events, waits[events.thread[waits] == thread]))))
    return union(*busy)


def _spans(events: Events, indices: Indices) -> Intervals:
    return np.column_stack((events.start_ns[indices], events.end_ns[indices]))


def _by_start(events: Events, indices: Indices) -> Indices:
    return indices[np.argsort(events.start_ns[indices], kind="stable")]


def _name(events: Events, index: int) -> str:
    return events.names[int(events.name[index])]


def _annotations(events: Events, *prefixes: str) -> Indices:
    """Return the host's marks whose name begins so; old traces file them under operators."""
    on_host = np.concatenate((events.of("user_annotation"), events.of("cpu_op")))
    wanted = named(events, [name.startswith(prefixes) for name in events.names])
    return on_host[wanted[on_host]]


def _own_marks(events: Events) -> dict[str, Intervals]:
    marks = _annotations(events, _OWN_MARK)
    return {
        events.names[code].removeprefix(_OWN_MARK): union(
            _spans(events, marks[events.name[marks] == code])
        )
        for code in np.unique(events.name[marks])
    }


def _codec_kernels(events: Events, kernels: Indices) -> dict[str, Intervals]:
    """Return when the device encoded and decoded: the kernels launched inside these marks.

    The marks are the host's, which only asks for the work.
    """
    asked_ns, threads = kernel_launches.runtime_calls(events, kernels)
    found = {}
    for mark in (ENCODE, DECODE):
        around = Spans.of(events, _annotations(events, mark))
        inside = kernels[around.containing(asked_ns, threads) >= 0]
        if len(around.indices):
            found[mark.removeprefix(_OWN_MARK)] = union(_spans(events, inside))
    return found


def _extent(events: Events) -> tuple[int, int]:
    """Return first start and last end; the profiler's own spans do not count."""
    counting = events.category > 0
    if not counting.any():
        return (0, 0)
    return int(events.start_ns[counting].min()), int(events.end_ns[counting].max())


def _refuse_unseen_gpu(events: Events) -> None:
    calls = kernel_launches.calls_on_device(events)
    if len(calls):
        backend = kernel_launches.name_of_backend(events, calls)
        activity = {"NCCL": "CUDA", "XCCL": "XPU", "HCCL": "HPU", "MTIA": "MTIA"}.get(backend)
        raise UsageError(
            f"the trace shows {backend} calls but no GPU kernel, so the communication time is not "
            "known. Record it again with torch.profiler's "
            f"{f'ProfilerActivity.{activity}' if activity else 'activity of the device'} added."
        )
    if any(name.startswith("hcom_") for name in events.names):
        raise UsageError(
            "the trace is of Ascend's profiler, which gives what its device did no category: "
            "neither communication nor computation is known."
        )


def _matches(pattern: re.Pattern[str] | None, name: str) -> bool:
    return pattern is not None and pattern.search(name) is not None


def _only_group(events: Events) -> tuple[str | None, int | None]:
    """Return name and size of the process group, where the trace lists a single one."""
    return next(iter(events.groups.items())) if len(events.groups) == 1 else (None, None)


def _host_operations(events: Events) -> tuple[Operation, ...]:
    """Return the operations of a CPU backend."""
    indices = _by_start(events, _annotations(events, *communication_kernels.HOST_BACKENDS))
    c10d = _by_start(events, _annotations(events, "c10d::"))
    requests = match_requests(events, indices, c10d)
    asked_ns = np.where(requests >= 0, events.start_ns[requests], events.start_ns[indices])
    asked_ns = np.minimum(asked_ns, events.start_ns[indices])
    phases = phases_of(events).at(asked_ns)
    group, group_size = _only_group(events)
    operations = []
    for index, request, enqueued, phase in zip(indices, requests, asked_ns, phases, strict=True):
        name = _name(events, index)
        facts = from_annotation(name, events.details.get(int(index), {}), group_size)
        if request >= 0:
            asked = from_request(_name(events, request), events.details.get(int(request), {}))
            # A reduce-scatter may be carried out by all-reduces: what was asked for counts.
            facts = Facts(kind=asked.kind, num_bytes=asked.num_bytes).or_else(
                Facts(num_bytes=facts.num_bytes, dtype=facts.dtype)
            )
        operations.append(
            Operation(
                kind=facts.kind,
                name=name,
                start_ns=int(events.start_ns[index]),
                end_ns=int(events.end_ns[index]),
                enqueued_ns=int(enqueued) if request >= 0 else None,
                num_bytes=facts.num_bytes,
                dtype=facts.dtype,
                group=group,
                group_size=group_size,
                phase=phase,
                stream=int(events.thread[index]),
            )
        )
    return tuple(operations)


def _calls_without_marks(events: Events, marked: Sequence[Operation]) -> Calls:
    """Count what several ranks asked c10d for, where no mark says when a CPU backend did it."""
    asked = [name.startswith("c10d::") and carries_data(name) for name in events.names]
    num = int(np.sum(named(events, asked)[events.of("cpu_op")]))
    if marked or 1 in (events.world_size, _only_group(events)[1]):
        return Calls()
    return Calls(num, num, "c10d", "mark of a backend")


def _firsts(events: Events, carriers: Sequence[Indices]) -> Indices:
    return np.array([_by_start(events, group)[0] for group in carriers], dtype=np.int64)


def _gpu_operations(
    events: Events, carriers: Sequence[Indices], launches: kernel_launches.KernelLaunches
) -> tuple[Operation, ...]:
    """Return the operations, by start: of a kernel, of several copies, or of nothing at all."""
    all_phases = phases_of(events)
    phases = all_phases.at(launches.asked_ns)
    operations = list(silent_operations(events, launches, all_phases))
    for position, kernel in enumerate(_firsts(events, carriers).tolist()):
        facts = _gpu_facts(events, kernel, launches.of(position))
        asked_ns = int(launches.asked_ns[position])
        operations.append(
            Operation(
                kind=facts.kind,
                name=_name(events, kernel),
                start_ns=int(events.start_ns[kernel]),
                end_ns=int(events.end_ns[carriers[position]].max()),
                enqueued_ns=None if asked_ns == kernel_launches.NEVER else asked_ns,
                num_bytes=facts.num_bytes,
                dtype=facts.dtype,
                group=facts.group,
                group_size=facts.group_size,
                sequence=facts.sequence,
                phase=phases[position],
                stream=int(events.thread[kernel]),
            )
        )
    return tuple(sorted(operations, key=lambda operation: operation.start_ns))


def _gpu_facts(events: Events, kernel: int, launch: kernel_launches.Launch) -> Facts:
    """Return what is known of a kernel's operation, the surest source first.

    The kernel's name comes last: NCCL launches one compiled kernel for operations of many kinds,
    and in 2.10 to 2.13 nearly all of them were called ``SendRecv`` (NVIDIA/nccl issues 714, 739).
    """
    facts = from_metadata(events.details.get(kernel, {}))
    if launch.record is not None:
        facts = facts.or_else(from_metadata(events.details.get(launch.record, {})))
    if launch.annotation is not None:
        facts = facts.or_else(
            from_annotation(
                _name(events, launch.annotation),
                events.details.get(launch.annotation, {}),
                facts.group_size or _only_group(events)[1],
            )
        )
    if launch.request is not None:
        facts = facts.or_else(
            from_request(_name(events, launch.request), events.details.get(launch.request, {}))
        )
    facts = facts.or_else(Facts(kind=kind_of_kernel(_name(events, kernel))))
    group, group_size = _only_group(events)
    return facts.or_else(Facts(group=group, group_size=group_size))
