"""One rank of a probe: join, time operations, play pipelines or compare clocks, leave a record."""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from scalebench.records.files import write_model
from scalebench.records.measured.probes import ProbeRecord, TimedTransfer
from scalebench.records.measured.trace import ClockAlignment
from scalebench.records.paths import LaunchPaths
from scalebench.spec.probes import ClockCheck, Probe, Rehearsal, Sweep, Transfer
from scalebench.worker.collectives.operations import Operation, build
from scalebench.worker.measure.rounds import combine, measure_offset
from scalebench.worker.process import setup as process
from scalebench.worker.process.context import JobContext, joined
from scalebench.worker.process.failure import describe
from scalebench.worker.process.setup import write_nccl_log
from scalebench.worker.process.store_queue import rendezvous_store
from scalebench.worker.synthetic_steps import rehearse

PAUSE_S = 0.05
"""Between two comparisons of clocks."""

CYCLES_PER_S = 2e9
"""Of a GPU, roughly: a slower clock only makes the queue's head start longer."""
LONGEST_HEAD_START_S = 0.05

FEWEST_SIZES = 3
"""Of each operation, whatever they take: with fewer nothing is fitted."""


def run_probe(request: dict[str, Any]) -> int:
    """Run one rank of a probe and write its record; return the process's exit code.

    Args:
        request: As of `scalebench.worker.rank.run_cell`.
    """
    rank = int(request["rank"])
    local_rank = int(request.get("local_rank", rank))
    paths = LaunchPaths(Path(request["folder"]))
    probe: Sweep | ClockCheck | Rehearsal = TypeAdapter(Probe).validate_json(
        paths.job_json.read_text()
    )
    nccl = None
    try:
        process.prepare_rank(probe, local_rank)
        if isinstance(probe, Sweep) and probe.nccl_log:
            nccl = write_nccl_log(paths.nccl_log(rank), Path(request["log"]))
        store = rendezvous_store(request, paths, probe)
        with joined(probe, rank, store, local_rank) as context:
            record = _record(context)
        record = record.model_copy(update={"wires": nccl.read() if nccl else None})
    except BaseException as error:
        record = ProbeRecord(rank=rank, error=describe(error))
        print(record.error.traceback if record.error else "", flush=True)
    write_model(paths.record(rank), record, indent=None)
    return 0 if record.error is None else 1


def _record(context: JobContext[Any]) -> ProbeRecord:
    if isinstance(context.job, Sweep):
        return ProbeRecord(rank=context.rank, sweep=sweep(context.job, context))
    if isinstance(context.job, Rehearsal):
        found = rehearse(context)
        return ProbeRecord(rank=context.rank, played=found if context.rank == 0 else None)
    return ProbeRecord(rank=context.rank, clock=compare_clocks(context))


def sweep(plan: Sweep, context: JobContext[Sweep]) -> tuple[TimedTransfer, ...]:
    """Time every transfer of a plan, by turns; on rank 0 the whole answer, elsewhere nothing.

    By turns, so that what changes on a shared machine or link meanwhile hits all of them alike.
    What a time limit leaves out is not in the answer.
    """
    seen: list[list[_Timing]] = [[] for _ in plan.transfers]
    limit = TimeLimit(plan)
    for _ in range(plan.repeats):
        for index in limit.order:
            if not limit.allows(index):
                continue
            began = time.monotonic()
            seen[index].append(_timing(plan.transfers[index], context))
            if plan.time_limit_s is not None:
                (took_s,) = context.agree_max([time.monotonic() - began])
                limit.spent(index, took_s)
    if context.rank != 0:
        return ()
    singly = context.device.type != "cuda"
    every = zip(plan.transfers, seen, strict=True)
    return tuple(_answer(transfer, timings, singly) for transfer, timings in every if timings)


def _timing(transfer: Transfer, context: JobContext[Sweep]) -> "_Timing":
    if context.device.type == "cuda":
        first, again = (build(transfer, context) for _ in range(2))
        between_two = transfer.peers if transfer.operation == "send_recv" else None
        time_s = timed_on_device(first, again, transfer.back_to_back, context, between_two)
        return _Timing(first.num_bytes, [time_s], *checked([first], context))
    operations = [build(transfer, context) for _ in range(transfer.back_to_back + 1)]
    each_s = timed(operations, context)
    return _Timing(operations[0].num_bytes, each_s, *checked(operations, context))


class _Timing(NamedTuple):
    """One timing of a transfer: its size, each operation, elements looked at, and wrong ones."""

    size_bytes: int
    each_s: list[float]
    num_elements: int
    num_wrong: int


def timed(operations: list[Operation], context: JobContext[Sweep]) -> list[float]:
    """Return the time of each operation on the rank that took longest; the first is discarded."""
    first, *counted = operations
    context.barrier()
    first.run()
    marks = [time.perf_counter()]
    for operation in counted:
        operation.run()
        marks.append(time.perf_counter())
    return context.agree_max([b - a for a, b in pairwise(marks)])


def timed_on_device(
    first: Operation,
    again: Operation,
    count: int,
    context: JobContext[Sweep],
    ranks: Sequence[int] | None = None,
) -> float:
    """Return the mean time of operations that GPUs do one after another, seconds.

    As nccl-tests does it: one to warm up, then ``count`` on the same buffers between two events on
    the stream, one synchronisation at the end, and the mean over the ranks. A GPU does a small
    operation faster than Python asks for it. So the stream sleeps until all of them are in its
    queue, and then the ranks meet on the device: no event sees the host, or a rank that came late.

    The result of ``first`` can be checked; that of ``again`` is that of ``count`` in a row.
    ``ranks``: those that take part; None: all.
    """
    gate = torch.zeros(1, device=context.device)
    context.barrier()
    dist.all_reduce(gate)
    asked_s = time.perf_counter()
    first.run()
    asked_s = time.perf_counter() - asked_s
    head_start_s = min(2 * (count + 1) * asked_s, LONGEST_HEAD_START_S)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(head_start_s * CYCLES_PER_S))
    dist.all_reduce(gate)
    begin.record()
    for _ in range(count):
        again.run()
    end.record()
    torch.cuda.synchronize(context.device)
    of_ranks = context.gather(float(begin.elapsed_time(end)) / 1e3 / count)
    chosen = [of_ranks[rank] for rank in ranks or range(len(of_ranks))]
    return float(sum(chosen) / len(chosen))


def checked(operations: list[Operation], context: JobContext[Sweep]) -> tuple[int, int]:
    """Return how many elements all ranks together have looked at, and how many are wrong."""
    looked_at = sum(o.output.numel() for o in operations if o.expected is not None)
    found = context.gather((looked_at, sum(o.num_wrong() for o in operations)))
    return sum(n for n, _ in found), sum(wrong for _, wrong in found)


def _answer(transfer: Transfer, timings: list[_Timing], singly: bool) -> TimedTransfer:
    """Put the timings of a transfer together; ``singly``: each operation was timed by itself."""
    return TimedTransfer(
        transfer=transfer,
        size_bytes=timings[0].size_bytes,
        time_s=tuple(sum(timing.each_s) / len(timing.each_s) for timing in timings),
        each_s=tuple(one for timing in timings for one in timing.each_s) if singly else (),
        num_elements=sum(timing.num_elements for timing in timings),
        num_wrong=sum(timing.num_wrong for timing in timings),
    )


def compare_clocks(context: JobContext[ClockCheck]) -> ClockAlignment:
    """Return how this rank's clock stands against rank 0's, asked over the network."""
    before = measure_offset(context, time.monotonic_ns, force=True)
    time.sleep(PAUSE_S)
    after = measure_offset(context, time.monotonic_ns, force=True)
    return combine(before, after)


class TimeLimit:
    """Which transfers of a sweep are still timed where its time is limited: small before large.

    Every rank has to come to the same answers, so what is asked and told is the same on all.

    Attributes:
        order: Places of the plan's transfers, as they are timed: with a limit by size, so that all
            operations get equally far.
    """

    def __init__(self, plan: Sweep) -> None:
        self.transfers, self.limit_s = plan.transfers, plan.time_limit_s
        places = range(len(plan.transfers))
        if self.limit_s is None:
            self.order = list(places)
            return
        self.order = sorted(places, key=lambda place: plan.transfers[place].size_bytes)
        self._spent_s = 0.0
        self._took_s: dict[int, float] = {}
        self._largest: dict[Transfer, int] = {}
        self._num_sizes: Counter[Transfer] = Counter()

    def allows(self, place: int) -> bool:
        """Tell whether a transfer may be timed (again) within what is left."""
        if self.limit_s is None:
            return True
        again = place in self._took_s
        if not again and self._num_sizes[_kind(self.transfers[place])] < FEWEST_SIZES:
            return True
        return self._spent_s + self._expected_s(place) <= self.limit_s

    def _expected_s(self, place: int) -> float:
        """Return what a timing took the last time; the first time, as long as its size says."""
        if place in self._took_s:
            return self._took_s[place]
        transfer = self.transfers[place]
        smaller = self._largest[_kind(transfer)]
        operations = (transfer.back_to_back + 1) / (self.transfers[smaller].back_to_back + 1)
        grows = transfer.size_bytes / self.transfers[smaller].size_bytes
        return self._took_s[smaller] * grows * operations

    def spent(self, place: int, took_s: float) -> None:
        """Note what a timing took, seconds, the same on every rank."""
        kind = _kind(self.transfers[place])
        if place not in self._took_s:
            self._num_sizes[kind] += 1
            self._largest[kind] = place
        self._took_s[place] = took_s
        self._spent_s += took_s


def _kind(transfer: Transfer) -> Transfer:
    """Return what the sizes of an operation have in common."""
    return transfer.model_copy(update={"size_bytes": 1, "back_to_back": 1})
