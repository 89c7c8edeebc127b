"""A run and its launches, as they are stored, with what precision and batch were asked for."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from scalebench.records.certificate import Certificate
from scalebench.records.measured.rank import ErrorKind, RankRecord
from scalebench.records.measured.recovery import ElasticRun, FaultTimeline
from scalebench.records.measured.trace import NodeTrack
from scalebench.spec import Cell, Device, Scaling, StepPlan, Suite
from scalebench.spec.base import LARGE, Record
from scalebench.spec.world import VirtualHosts, World
from scalebench.units import bytes_

RUN_FORMAT = "scalebench.run/1"

CELL_FORMAT = "scalebench.cell/1"

Status = Literal["ok", "oom", "failed", "skipped"]


class ImpreciseRow(Record):
    """A row whose efficiency is not known as precisely as asked.

    Attributes:
        half_width: Of the 95 % interval of its efficiency, as a fraction of ideal; null: there is
            no interval.
        more_s: How much longer the run would have to go on, seconds; null: not known.
    """

    suite: str
    case: str
    world_size: int = Field(ge=1)
    half_width: FiniteFloat | None
    more_s: FiniteFloat | None


class PrecisionReached(Record):
    """What became of the wanted precision.

    Attributes:
        half_width: Wanted of the 95 % interval of every row's efficiency, as a fraction of ideal.
        budget_s: Time for it, seconds of the whole run.
        num_rows: Rows whose efficiency has a baseline.
        imprecise: Those of them that are not known as precisely.
    """

    half_width: FiniteFloat = Field(gt=0)
    budget_s: FiniteFloat = Field(gt=0)
    num_rows: int
    imprecise: list[ImpreciseRow] = []


class LargestBatch(Record):
    """What the search found for one case at one number of ranks, in samples per rank.

    Attributes:
        fits: The largest batch known to fit; 0: not even one sample.
        too_large: The smallest batch known not to fit.
    """

    suite: str
    case: str
    world_size: int = Field(ge=1)
    fits: int = Field(ge=0, lt=LARGE)
    too_large: int = Field(ge=1, lt=LARGE)

    def notice(self, with_suite: bool = False) -> str:
        """Return the result as a sentence for people; name the suite where a run has several."""
        suite = f"{self.suite}: " if with_suite else ""
        return (
            f"{suite}{self.case}, N = {self.world_size}: {self.fits} samples per rank fit, "
            f"{self.too_large} do not"
        )


_NOTICE = re.compile(r"(.+), N = (\d+): (\d+) samples per rank fit, (\d+) do not")


def from_notices(notices: Iterable[str], plan: Sequence[Cell]) -> list[LargestBatch]:
    """Return the largest batches of a run that stored them as notices only, as old versions did.

    Those notices do not name the suite. Where several suites of the plan have the same case at the
    same N, it is not known whose batch it is, and it is left out.
    """
    suites: dict[tuple[str, int], set[str]] = {}
    for cell in plan:
        suites.setdefault((cell.case, cell.world_size), set()).add(cell.suite)
    found = []
    for match in filter(None, map(_NOTICE.fullmatch, notices)):
        with suppress(ValueError):  # numbers that no run has: not scalebench's own notice
            case, *numbers = match.groups()
            world_size, fits, too_large = map(int, numbers)
            owners = suites.get((case, world_size), set())
            if len(owners) == 1:
                (suite,) = owners
                found.append(
                    LargestBatch(
                        suite=suite,
                        case=case,
                        world_size=world_size,
                        fits=fits,
                        too_large=too_large,
                    )
                )
    return found


class Failure(Record):
    """The first thing that went wrong in a launch; later failures follow from it."""

    rank: int | None
    kind: ErrorKind
    message: str
    traceback: str | None = None
    log_tail: str = ""


class CellResult(Record):
    """One launch, as stored: the cell, what became of it, what each rank measured.

    Attributes:
        launch_s: From the session's decision to the last rank's first training step, seconds.
        wall_s: From the decision to the end of the last rank, seconds.
        started: UTC, ISO 8601.
        shared_with: Ids of the cells that took turns in this launch, its own included; empty: it
            had the launch to itself.
        node: What the GPUs and processors of the machine did meanwhile; null: not watched.
        lost: Ranks without which the others came to their end, and why they are gone.
        faults: Of launches in which a rank is made to fail: how each failure went.
        elastic: Of the same: how the job went on with fewer ranks; null: it was not tried.
        elastic_repeats: The same again, after other losses.
    """

    format: str = CELL_FORMAT
    cell: Cell
    status: Status
    reason: str | None = None
    failure: Failure | None = None
    started: str
    launch_s: FiniteFloat | None = Field(None, ge=0)
    wall_s: FiniteFloat | None = Field(None, ge=0)
    ranks: list[RankRecord] = []
    shared_with: list[str] = []
    node: NodeTrack | None = None
    lost: list[Failure] = []
    faults: list[FaultTimeline] = []
    elastic: ElasticRun | None = None
    elastic_repeats: list[ElasticRun] = []

    @property
    def cost_s(self) -> float:
        """This cell's part of the launch's wall clock: cells that took turns share it, seconds."""
        return (self.wall_s or 0.0) / max(1, len(self.shared_with))


class RunSpec(Record):
    """What a run was asked to do, every default filled in.

    Attributes:
        launcher: Who starts ranks.
        world: The processes that it has started, and where they are; null: ranks are started for
            each launch.
        precision: Wanted half-width of the 95 % interval of every row's efficiency, as a fraction
            of ideal; further rounds are launched until it is reached. Null: none are.
        precision_budget_s: Seconds after which no further round is begun.
        pinned: See `scalebench.spec.Job`.
        shared: The rows of a suite are launched together in each round, and take turns.
        anonymise: Names of hosts and users, addresses, paths and the words of a script are
            taken out before anything is stored.
        keep_going: Cells are tried although a smaller one of their case ran out of memory.
    """

    suites: tuple[Suite, ...]
    world_sizes: tuple[int, ...]
    added_world_sizes: tuple[int, ...] = ()
    device: Device
    scaling: Scaling
    launcher: str = "local"
    world: World | None = None
    virtual_hosts: VirtualHosts | None = None
    oversubscribe: bool = False
    threads: int
    pinned: bool = True
    steps: StepPlan
    repeats: int
    budget_s: float | None = None
    quick: bool = False
    precision: FiniteFloat | None = None
    precision_budget_s: FiniteFloat | None = None
    shared: bool = False
    selection: str | None = None
    keep_going: bool = False
    anonymise: bool = False


class CodeFile(Record):
    """A file of the user's own code, as it was when the run was started or resumed.

    Attributes:
        name: What the user calls it: the script, ``-m`` and a module, or a workload's module.
        path: Where it is, absolute.
        sha256: Of its content.
    """

    name: str
    path: str
    sha256: str


class RunInfo(Record):
    """``run.json``: what was run, where, and how far it came.

    Attributes:
        command: The command line, as a list of arguments.
        spec: What the run was asked to do.
        environment: Fingerprint of machine and software.
        plan: Every cell in the order of execution.
        notices: What the reader has to know about the whole run, for example that this was CPU.
        largest_batches: What ``--max-batch`` found; empty: it was not asked for.
        certificate: The newest of this machine when the run began; null: there was none.
        profile_differs: In what the machine of the link profile that was given is another one.
        precision: What became of the wanted precision; null: none was wanted.
        sealed: Every file of the run has a checksum; older versions wrote none.
        code: Files of the user's own script or workload; empty: there is none, or the version was
            older.
        folder: Where that code runs, absolute; null: as above.
        status: ``running`` also means: was killed before it could say otherwise.
    """

    format: str = RUN_FORMAT
    run_id: str
    version: str
    created: str
    command: list[str]
    spec: RunSpec
    environment: dict[str, Any]
    plan: list[Cell]
    notices: list[str] = []
    largest_batches: list[LargestBatch] = []
    certificate: Certificate | None = None
    profile_differs: list[str] = []
    precision: PrecisionReached | None = None
    sealed: bool = False
    code: list[CodeFile] = []
    folder: str | None = None
    status: Literal["running", "complete", "interrupted", "over budget"] = "running"


LOST = "GPU is lost"
"""What NVML answers for a device that fell off the bus or has to be reset."""


def skipped_result(cell: Cell, reason: str, started: str) -> CellResult:
    """Return the result of a cell that was not launched."""
    return CellResult(cell=cell, status="skipped", reason=reason, started=started)


def launched_result(
    cell: Cell,
    records: Sequence[RankRecord],
    failure: Failure | None,
    started: str,
    times: tuple[float | None, float],
    node: NodeTrack | None = None,
    lost: Sequence[Failure] = (),
) -> CellResult:
    """Return the result of a launch: fast counts only if it is whole, finite and correct.

    Args:
        cell: What was launched.
        records: What its ranks left.
        failure: The first thing that went wrong, or None.
        started: UTC, ISO 8601.
        times: ``launch_s`` and ``wall_s``.
        node: What the machine did meanwhile.
        lost: Ranks without which the others came to their end.
    """
    records = with_common_steps(records)
    status, reason = _status(cell, records, failure, lost)
    if status == "failed" and node is not None:
        reason = f"{reason}{_lost_devices(node)}"
    return CellResult(
        cell=cell,
        status=status,
        reason=reason,
        failure=failure,
        started=started,
        launch_s=times[0],
        wall_s=times[1],
        ranks=list(records),
        node=node,
        lost=list(lost),
    )


def with_common_steps(records: Sequence[RankRecord]) -> list[RankRecord]:
    """Return the records cut to the steps that all ranks have.

    A rank that is lost after the clean window leaves what it had until then; the others may have
    come further.
    """
    if len({tuple(_blocks(record)) for record in records}) < 2:
        return list(records)
    return [_without_rounds(record) for record in records]


def _without_rounds(record: RankRecord) -> RankRecord:
    last = record.num_trained
    return record.model_copy(
        update={
            "step_s": record.step_s[:last],
            "loss": record.loss[:last],
            "blocks": [block for block in record.blocks if block.first < last],
            "trace": None,
            "trace_unavailable": record.trace_unavailable
            or "another rank was lost while steps were traced",
            "another_rank_left": record.another_rank_left or record.trace_unavailable is None,
        }
    )


def contradiction(result: CellResult, planned: Cell) -> str | None:
    """Say why a stored result cannot be what a launch of the planned cell left, or None.

    A reader of the result may then rely on it: an ``ok`` launch has every rank once, and a
    measuring one steps of some time, the same blocks on every rank, and a clean step.
    """
    cell = result.cell
    if _without_place(cell.model_copy(update={"steps": planned.steps})) != _without_place(planned):
        return "it belongs to a different cell than the planned one"
    if result.status != "ok" or _only_others(result):
        return None
    there = [*(rank.rank for rank in result.ranks), *(one.rank for one in result.lost)]
    if sorted(rank for rank in there if rank is not None) != list(range(cell.num_processes)):
        return f"it does not contain each of {cell.num_processes} ranks once"
    if cell.purpose == "inspect":
        told = all(rank.verification is not None for rank in result.ranks)
        return None if told else "a rank did not record the comparison with the reference"
    if cell.purpose in ("save", "restore", "fail"):
        told = all(rank.recovery is not None for rank in result.ranks)
        return None if told else "a rank did not record its checkpoints"
    has_losses = cell.strategy.has_reference and cell.purpose != "shard"
    first = result.ranks[0]
    found = (_unusable(rank, first, has_losses) for rank in result.ranks)
    return next(filter(None, found), None)


def _without_place(cell: Cell) -> Cell:
    """Return a cell without the place of its checkpoints, which moves with the run's folder."""
    if cell.recovery is None:
        return cell
    plan = cell.recovery.model_copy(update={"directory": None})
    return cell.model_copy(update={"recovery": plan})


def _only_others(result: CellResult) -> bool:
    """Whether scalebench started none of the ranks that failed: others' leave no record."""
    return bool(result.faults) and all(one.restarted_by != "scalebench" for one in result.faults)


def _unusable(rank: RankRecord, first: RankRecord, has_losses: bool) -> str | None:
    """Say what is wrong with a rank's steps, or None; a script's losses are not known."""
    num_steps = len(rank.step_s)
    if num_steps != len(first.step_s) or _blocks(rank) != _blocks(first):
        return "its ranks took different steps"
    if any(step <= 0 for step in rank.step_s):
        return "it has a step that took no time"
    if has_losses and (len(rank.loss) != num_steps or None in rank.loss[: rank.num_trained]):
        return "a step has no finite loss"
    if any(block.first + block.count > num_steps for block in rank.blocks):
        return "a block lies beyond the steps"
    if not any(block.phase == "clean" and block.count > 1 for block in rank.blocks):
        return "it has no clean step"
    return None


def _blocks(rank: RankRecord) -> list[tuple[str, int, int]]:
    """Return what has to be the same on every rank; when a block was run differs."""
    return [(block.phase, block.first, block.count) for block in rank.blocks]


def _status(
    cell: Cell, records: Sequence[RankRecord], failure: Failure | None, lost: Sequence[Failure]
) -> tuple[Status, str | None]:
    if failure is not None:
        return _status_of_failure(failure, records)
    known = {record.rank for record in records} | {failure.rank for failure in lost}
    missing = sorted(set(range(cell.num_processes)) - known)
    if missing:
        return "failed", f"no record of rank {', '.join(map(str, missing))}"
    bad_loss = _first_bad_loss(records)
    if bad_loss:
        return "failed", bad_loss
    deviating = [r.verification for r in records if r.verification is not None]
    for verification in deviating:
        if verification.status == "deviates":
            return "failed", verification.reason
    return "ok", None


def _status_of_failure(failure: Failure, records: Sequence[RankRecord]) -> tuple[Status, str]:
    if failure.kind == "unsupported":
        return "skipped", failure.message
    who = f"rank {failure.rank}: " if failure.rank is not None else ""
    if failure.kind == "oom":
        return "oom", who + failure.message + _peak_of(failure.rank, records)
    return "failed", who + failure.message


def _peak_of(number: int | None, records: Sequence[RankRecord]) -> str:
    """Say how much a rank that ran out of memory had until then."""
    memory = next((record.memory for record in records if record.rank == number), None)
    if memory is None:
        return ""
    if memory.allocated_bytes is not None:
        return f" (its peak until then: {bytes_(memory.allocated_bytes)})"
    if memory.rss_bytes is not None:
        return f" (the process's peak until then: {bytes_(memory.rss_bytes)})"
    return ""


def _lost_devices(node: NodeTrack) -> str:
    """Say which GPUs the driver lost meanwhile: a rank's own error seldom does."""
    lost = [
        f"GPU {device.index if device.index is not None else device.uuid}"
        for device in node.devices
        if any(LOST in reason for reason in device.unavailable.values())
    ]
    return f" (NVML lost {', '.join(lost)} during this launch)" if lost else ""


def _first_bad_loss(records: Sequence[RankRecord]) -> str | None:
    bad = [
        (record.loss.index(None), record.rank)
        for record in records
        if None in record.loss[: record.num_trained or None]
    ]
    if not bad:
        return None
    step, rank = min(bad)
    return f"the loss is not finite at step {step} on rank {rank}"
