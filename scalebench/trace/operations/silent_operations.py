"""Operations of a group of one rank, for which NCCL launches no kernel.

An in-place sum over one rank is there already, so the GPU's part of a trace shows nothing of it.
The host's does: torch records every operation of a process group with its kind and size
(``record_param_comms``). Such an operation takes no time, and its place is where it would have
begun: NCCL's stream waits for what the host had asked the current stream to do before, so that is
when the last kernel or copy asked for until then is over.
"""

from collections.abc import Sequence

import numpy as np

from scalebench.trace.events import Events
from scalebench.trace.files.metadata import Facts, from_metadata
from scalebench.trace.intervals import Indices, named
from scalebench.trace.operations.kernel_launches import NEVER, KernelLaunches, Phases, runtime_calls
from scalebench.trace.operations.names import COMMS_RECORD
from scalebench.trace.timeline import Operation, Phase


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
