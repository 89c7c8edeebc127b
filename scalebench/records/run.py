"""A run and its launches, as they are stored."""

from typing import Any, Literal

from pydantic import Field, FiniteFloat

from scalebench.records.base import Record
from scalebench.records.certificate import Certificate
from scalebench.records.largest_batch import LargestBatch
from scalebench.records.measured.rank import ErrorKind, RankRecord
from scalebench.records.measured.recovery import ElasticRun, FaultTimeline
from scalebench.records.measured.telemetry import NodeTrack
from scalebench.records.precision import PrecisionReached
from scalebench.spec import Cell, Device, Scaling, StepPlan, Suite
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import World

RUN_FORMAT = "scalebench.run/1"


CELL_FORMAT = "scalebench.cell/1"


Status = Literal["ok", "oom", "failed", "skipped"]


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
