"""What is to be run, as data: suites, cases, strategies, the plan of steps, cells.

Everything here is frozen, hashable, and serialises to JSON and back. Nothing here runs anything.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scalebench.catalog import WorkloadSpec
from scalebench.compression import resolve
from scalebench.virtual_hosts import VirtualHosts

Scaling = Literal["strong", "weak"]
Device = Literal["cpu", "cuda"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=64)]


class Spec(BaseModel):
    """Base of every specification: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Execution(Spec):
    """How a rank does its arithmetic; the same at every N, so that sizes compare.

    Attributes:
        autocast: Forward pass under bfloat16 autocast; parameters stay float32.
        compile: ``torch.compile`` the module.
        checkpointing: Recompute each of the workload's blocks in the backward pass instead of
            keeping its activations (Chen et al. 2016).
    """

    autocast: bool = False
    compile: bool = False
    checkpointing: bool = False

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange anything in a step; a trace without it would be a broken one."""
        return True

    def baseline(self) -> "Plain":
        """Return the one-process run that this execution's efficiency is measured against.

        Precision and compilation are kept: they are not what distribution costs.
        Checkpointing is not: a good engineer leaves it off when the model fits.
        """
        return Plain(autocast=self.autocast, compile=self.compile)


class Plain(Execution):
    """The bare model in one process, no wrapper, no process group: what T_1 means."""

    kind: Literal["plain"] = "plain"


class Ddp(Execution):
    """``torch.nn.parallel.DistributedDataParallel``: replicas, gradients all-reduced in buckets.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB.

    Attributes:
        bucket_mb: Size of a gradient bucket in MiB (``bucket_cap_mb``).
        accumulate: Microbatches per step; all but the last run under ``no_sync``.
        static_graph: Tell DDP that the graph does not change between steps.
        gradient_as_bucket_view: Gradients live inside the buckets (saves one copy of them).
    """

    kind: Literal["ddp"] = "ddp"
    bucket_mb: float = Field(25.0, gt=0)
    accumulate: int = Field(1, ge=1)
    static_graph: bool = False
    gradient_as_bucket_view: bool = True


class Compressed(Execution):
    """DDP whose gradients are compressed on the way: a communication hook.

    Parameters that are None have the method's own defaults; see `scalebench.compression.METHODS`,
    and the method's file in ``worker/compression`` for its source, wire format and error.

    Attributes:
        method: Name of the method.
        bucket_mb: Size of a gradient bucket in MiB.
        error_feedback: Add to the next step what compression left out of this one.
        bits: Of an element on the wire (``quantise``, ``qsgd``).
        chunk: Elements that share a scale; a multiple of 8.
        rounding: To the nearest value, or by chance and unbiased.
        ratio: Part of the elements that is sent.
        threshold: Smallest element that is sent.
        momentum: Of ``dgc``.
        clip_norm: To which ``dgc`` clips the gradient of a bucket.
        warmup_steps: Over which ``dgc`` comes down to its ratio.
        rank: Of the matrices that stand for a gradient (``powersgd``).
        start_step: From which ``powersgd`` compresses.
        rows: Of a sketch.
        columns_per_kept: Of a sketch, for each element that is sent.
    """

    kind: Literal["compressed"] = "compressed"
    method: str
    bucket_mb: float = Field(25.0, gt=0)
    error_feedback: bool | None = None
    bits: int | None = None
    chunk: int | None = None
    rounding: Literal["nearest", "stochastic"] | None = None
    ratio: float | None = None
    threshold: float | None = None
    momentum: float | None = None
    clip_norm: float | None = None
    warmup_steps: int | None = None
    rank: int | None = None
    start_step: int | None = None
    rows: int | None = None
    columns_per_kept: int | None = None

    @property
    def communicates(self) -> bool:
        """Not without a method that sends anything."""
        return self.method != "noop"

    @property
    def settings(self) -> dict[str, Any]:
        """The method's parameters, the defaults filled in."""
        own = {*Compressed.model_fields} - {*Execution.model_fields}
        given = self.model_dump(include=own - {"kind", "method", "bucket_mb"})
        return resolve(self.method, given)

    @model_validator(mode="after")
    def _method_and_parameters_are_valid(self) -> Self:
        _ = self.settings
        return self


Strategy = Annotated[Plain | Ddp | Compressed, Field(discriminator="kind")]


class Loader(Spec):
    """Feed a built-in workload from host memory, as ``torch.utils.data.DataLoader`` does it.

    The fields have the DataLoader's names, meaning and defaults. The ranks train on the samples
    that they train on without a loader, in the same order.

    Attributes:
        num_workers: Processes of each rank that make batches; 0: the rank makes them itself,
            between its steps.
        pin_memory: Copy batches to page-locked memory first, from where a GPU fetches them while
            the rank goes on. Nothing is pinned for CPU ranks.
        prefetch_factor: Batches that each worker makes in advance; None: 2.
        persistent_workers: Keep the workers from one epoch to the next.
    """

    num_workers: int = Field(0, ge=0)
    pin_memory: bool = False
    prefetch_factor: int | None = Field(None, ge=1)
    persistent_workers: bool = False

    @model_validator(mode="after")
    def _what_workers_do_needs_workers(self) -> Self:
        if self.num_workers:
            return self
        for field, given in (
            ("prefetch_factor", self.prefetch_factor is not None),
            ("persistent_workers", self.persistent_workers),
        ):
            if given:
                raise ValueError(f"{field} is for worker processes: give num_workers of at least 1")
        return self


class Case(Spec):
    """One line of a suite: a strategy, and what differs from the suite's defaults.

    Attributes:
        loader: Feed the ranks through a DataLoader; None: from batches that live on the device.
        optional: Not run unless ``-k`` names it.
    """

    name: Name
    strategy: Strategy
    workload: str | None = None
    batch_size: int | None = Field(None, gt=0)
    loader: Loader | None = None
    optional: bool = False


class StepPlan(Spec):
    """How many steps a launch takes, and when it may stop.

    Attributes:
        steps: Exactly this many clean steps; None: stop by the two limits below.
        precision: Stop when the 95 % interval of the launch's median step time is narrower than
            ± this fraction of it; None: always fill the window.
        window_s: Length of the clean window, seconds of measured steps; an upper limit when
            ``precision`` is given.
        min_steps: Never stop before this many clean steps (unless ``steps`` says so).
        max_warmup_steps: Give up waiting for the steady state after this many steps and measure
            all the same; the row is then stamped ``unsteady``.
        max_warmup_s: The same limit in seconds of steps.
        trace: Follow the clean window with rounds in which steps are traced; see `Block`.
        rounds_s: Seconds of steps in those rounds together, kept as far as whole rounds allow.
    """

    steps: int | None = Field(None, gt=0)
    precision: float | None = Field(None, gt=0, lt=1)
    window_s: float = Field(1.0, gt=0)
    min_steps: int = Field(10, ge=2)
    max_warmup_steps: int = Field(200, ge=2)
    max_warmup_s: float = Field(30.0, gt=0)
    trace: bool = True
    rounds_s: float = Field(1.0, gt=0)


class Suite(Spec):
    """A question about scaling, and the cases that answer it. ``suites/*.py`` export these.

    Attributes:
        question: What the suite answers, one sentence.
        workload: Name as ``--workload`` takes it.
        batch_size: Global batch under strong scaling, the rank's batch under weak; None: the
            workload's own default.
        repeats: Launches of each cell.
        cell_limit_s: Wall clock after which a launch is ended and its row is ``failed``.
        collective_timeout_s: Time-out of the process group.
    """

    name: Name
    question: str
    cases: tuple[Case, ...] = Field(min_length=1)
    workload: str = "gpt"
    batch_size: int | None = Field(None, gt=0)
    scaling: Scaling = "strong"
    steps: StepPlan = StepPlan()
    repeats: int = Field(3, ge=1)
    seed: int = Field(0, ge=0)
    cell_limit_s: float = Field(900.0, gt=0)
    collective_timeout_s: float = Field(120.0, gt=0)

    @model_validator(mode="after")
    def _cases_have_names_of_their_own(self) -> Self:
        names = [case.name for case in self.cases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two cases are named {', '.join(twice)}")
        return self


Purpose = Literal["inspect", "measure"]


class Job(Spec):
    """Ranks that are launched together: what each of them needs to join the others.

    Attributes:
        backend: Of the process group; None where there is none (``plain``).
        threads: Intra-op threads of each rank, the same at every N.
        virtual_hosts: Where the ranks run; None: on the machine as it is.
        limit_s: Wall clock after which the launch is ended.
        collective_timeout_s: Time-out of the process group.
    """

    world_size: int = Field(ge=1)
    device: Device
    backend: str | None
    threads: int = Field(ge=1)
    virtual_hosts: VirtualHosts | None = None
    limit_s: float = 900.0
    collective_timeout_s: float = 120.0


class Cell(Job):
    """One launch: a case at one world size, once. Complete: a rank needs nothing else.

    Attributes:
        purpose: ``inspect``: check gradients and losses against the single-process reference
            and count the memory, with instruments on and nothing timed; ``measure``: time steps
            with no instrument on.
        repeat: Number of the launch, from 0.
        rank_batch: Samples per rank and step; ``global_batch`` over all ranks.
        oversubscribed: More ranks than devices (CPU: than cores).
        loader: How the ranks are fed; None: from batches that live on the device.
        skip_reason: Not None: this cell cannot run, and why.
    """

    suite: Name
    case: Name
    strategy: Strategy
    workload: WorkloadSpec
    scaling: Scaling
    global_batch: int = Field(ge=1)
    rank_batch: int = Field(ge=0)
    loader: Loader | None = None
    oversubscribed: bool = False
    purpose: Purpose
    repeat: int = Field(0, ge=0)
    steps: StepPlan
    seed: int = 0
    skip_reason: str | None = None

    @property
    def id(self) -> str:
        """File name stem of this cell's result; unique within a run."""
        tail = "inspect" if self.purpose == "inspect" else f"r{self.repeat}"
        return f"{self.suite}.{self.case}.n{self.world_size}.{tail}"

    @property
    def row_key(self) -> tuple[str, str, int]:
        """Cells with the same key are launches of the same row of the summary."""
        return (self.suite, self.case, self.world_size)

    def shortened(self, window_s: float) -> Self:
        """Return this cell with a clean window, and rounds, of at most ``window_s`` seconds."""
        plan = self.steps.model_copy(
            update={
                "window_s": min(self.steps.window_s, window_s),
                "rounds_s": min(self.steps.rounds_s, window_s),
            }
        )
        return self.model_copy(update={"steps": plan})
