"""The loss budget of a row: its parts, and how they are called everywhere."""

from dataclasses import dataclass

from pydantic import Field, FiniteFloat

from scalebench.spec.base import IfValid, RowPart
from scalebench.stats import Estimate


@dataclass(frozen=True)
class Part:
    """A part of the loss budget, in words.

    Attributes:
        key: Its name in ``points``, and that of its colour.
        name: What it is called everywhere.
        meaning: One line for a key.
        gain: What it is called where it is negative and gives time back; empty: the same.
        held_by: Key of the part that holds it where it has no number of its own.
        beyond: Whether only what is beyond the plain baseline's is lost.
    """

    key: str
    name: str
    meaning: str
    gain: str = ""
    held_by: str | None = None
    beyond: bool = False

    @property
    def field(self) -> str:
        """Its name in ``budget`` and in ``estimates``: seconds per step."""
        return f"{self.key}_s"

    @property
    def activity(self) -> str:
        """What a rank does meanwhile: a name in `scalebench.trace.breakdown.Partition`."""
        return self.key.removesuffix("_inflation")


PARTS = (
    Part(
        "compute_inflation",
        "slower computation",
        "The rank's share of the work takes longer than the same share did on one rank.",
        gain="faster computation",
        beyond=True,
    ),
    Part("exposed_transfer", "transfer", "Data on the wire while the rank computes nothing."),
    Part(
        "wait",
        "waiting",
        "Inside a communication that the last rank has not reached yet.",
        held_by="exposed_transfer",
    ),
    Part("bubble", "bubble", "Idle by the pipeline's schedule."),
    Part("codec", "encoding", "Encoding and decoding compressed gradients."),
    Part(
        "copies",
        "copies",
        "Copying or filling GPU memory while nothing else runs, longer than one rank did.",
        held_by="other_idle",
        beyond=True,
    ),
    Part("data_stall", "data", "Waiting for the next batch longer than one rank did.", beyond=True),
    Part(
        "other_idle",
        "idle",
        "Nothing of these: the interpreter, the strategy's bookkeeping, the operating system.",
        beyond=True,
    ),
    Part("residual", "unknown", "What the parts leave of the measured step."),
)
"""In the order in which a budget is read, from the ideal step to the measured one."""

RESIDUAL = PARTS[-1]
MEASURED = PARTS[:-1]
"""The parts that traced steps tell, each with an interval; the residual closes the sum."""
WAIT = next(part for part in PARTS if part.key == "wait")
COPIES = next(part for part in PARTS if part.key == "copies")


def agreeing(name: str, verb: str) -> str:
    """Write a part's name as the subject of a verb in the singular: ``"copies take"``."""
    first, _, rest = verb.partition(" ")
    return (
        f"{name} {' '.join(t for t in (first.removesuffix('s'), rest) if t)}"
        if (name == "copies")
        else f"{name} {verb}"
    )


class RankTimes(RowPart):
    """One rank's traced step and its parts, seconds: means over the launches.

    See `scalebench.trace.breakdown.Breakdown`. What is about copies is null where the traces of a
    GPU do not have them (version 0.1).
    """

    rank: int
    step_s: FiniteFloat
    compute_s: FiniteFloat
    busy_s: FiniteFloat | None = None
    comm_s: FiniteFloat
    exposed_comm_s: FiniteFloat
    exposed_transfer_s: FiniteFloat | None = None
    wait_s: FiniteFloat
    codec_s: FiniteFloat | None = None
    data_stall_s: FiniteFloat
    other_idle_s: FiniteFloat
    bubble_s: FiniteFloat | None = None
    copies_s: FiniteFloat | None = None
    copies_alone_s: FiniteFloat | None = None
    comm_beside_copies_s: FiniteFloat | None = None


class ComputeInflation(RowPart):
    """Why a rank computes longer than its share of the baseline's step; seconds per step.

    Attributes:
        smaller_batch_s: What plain training on the rank's batch takes longer than that share, on
            one rank.
        contention_s: What it takes longer on N ranks that train at once and send nothing.
        own_operators_s: The rest of the budget's slower computation: the strategy's own.
        contention: The step on N ranks at once over that on one; a plain ratio.
        unavailable: Field → why it is null.
    """

    smaller_batch_s: Estimate | None = None
    contention_s: Estimate | None = None
    own_operators_s: Estimate | None = None
    contention: Estimate | None = None
    unavailable: dict[str, str] = {}


class AxisLoss(RowPart):
    """Exposed communication along one dimension of the mesh, as a part of the budget.

    Over all dimensions the seconds sum to the budget's own. Where operations along several
    dimensions are in flight at once, each has an equal part of the time.

    Attributes:
        axis: The dimension; None: operations of a group that is none of the mesh.
        exposed_transfer_s: Its part of the budget's field of that name, seconds per step.
        wait_s: Likewise; None: the budget has none.
        exposed_s: Both together, estimated over the launches.
        efficiency_without: The row's efficiency if these operations took no time that computation
            does not hide, and all else were the same; null: nothing else takes time.
    """

    axis: str | None
    exposed_transfer_s: FiniteFloat
    wait_s: FiniteFloat | None
    exposed_s: Estimate
    efficiency_without: FiniteFloat | None = None


class Budget(RowPart):
    """Where a row's step goes, seconds per step; see `scalebench.analysis.budget`.

    Attributes:
        wait_s: None: could not be told from transfer, and ``exposed_transfer_s`` holds both.
        copies_s: None: the traces do not tell (version 0.1), and ``other_idle_s`` holds them.
        measured_s: The headline's step.
        not_apart: Why transfer and wait could not be separated; None: they could.
        drift: How much slower the clean steps next to the traced ones were than those of the clean
            window, of the launch in which they differ most; a plain ratio.
        rounds_left_out: Rounds whose traced moments were unlike the clean window, while those of
            most others were like it; the parts rest on the others.
        rank: Whose parts these are: the rank that waits most.
        closes: Whether the parts explain the step.
        points: Part → what it is of the measured step; these and the efficiency sum to 1.
        estimates: Field of a part → estimate over the launches.
        skew: The job's traced step over this rank's own, minus 1; mean over launches.
        clock_bound_s: How far a wait may be wrong because two hosts' clocks differ; 0: one host.
        mean_over_ranks: Whether the parts are means over the ranks, which do different work.
        ranks: The traced step of every rank.
        inflation: Parts of ``compute_inflation_s``; None: one rank, or no baseline.
        by_axis: ``exposed_transfer_s`` and ``wait_s`` by the dimension of the mesh whose group
            carried the operations; None: the strategy has no mesh, or does not say.
    """

    ideal_s: FiniteFloat
    compute_inflation_s: FiniteFloat
    exposed_transfer_s: FiniteFloat
    wait_s: FiniteFloat | None
    bubble_s: FiniteFloat
    codec_s: FiniteFloat
    copies_s: FiniteFloat | None = None
    data_stall_s: FiniteFloat
    other_idle_s: FiniteFloat
    residual_s: FiniteFloat
    measured_s: FiniteFloat = Field(gt=0)
    not_apart: str | None = None
    drift: FiniteFloat = 0.0
    rounds_left_out: int = 0
    rank: int
    closes: bool
    points: dict[str, FiniteFloat] = {}
    estimates: dict[str, Estimate] = {}
    skew: FiniteFloat = 0.0
    clock_bound_s: FiniteFloat = 0.0
    mean_over_ranks: bool = False
    ranks: IfValid[list[RankTimes]] = None
    inflation: IfValid[ComputeInflation] = None
    by_axis: IfValid[list[AxisLoss]] = None

    @property
    def ideal(self) -> float:
        """The ideal step as a part of the measured one: the efficiency."""
        return self.ideal_s / self.measured_s

    @property
    def gap(self) -> float:
        """What is missing to ideal, as a part of the measured step."""
        return 1 - self.ideal

    def seconds(self, part: Part) -> float | None:
        """Return a part, seconds per step; None: another part holds it."""
        found: float | None = getattr(self, part.field)
        return found

    def knows(self, part: Part) -> bool:
        """Whether a part of the budget has a number of its own."""
        return self.seconds(part) is not None

    def known_like(self, other: "Budget") -> dict[str, float]:
        """Return the parts that both know, field → seconds; one that it alone knows is held.

        So two budgets can be compared part by part: what ``other`` has no number for is put to
        the part that holds it there.
        """
        found = {part.field: self.seconds(part) or 0.0 for part in PARTS if self.knows(part)}
        for part in PARTS:
            if not other.knows(part) and part.held_by and part.field in found:
                found[f"{part.held_by}_s"] += found.pop(part.field)
        return found

    def share(self, part: Part) -> float:
        """Return a part as a part of the measured step; one that another part holds: 0."""
        return (self.seconds(part) or 0.0) / self.measured_s

    def estimate(self, part: Part) -> Estimate | None:
        """Return a part with its interval, as a part of the measured step; the residual: None."""
        found = self.estimates.get(part.field)
        return found.scaled(1 / self.measured_s) if found else None

    def certain(self, part: Part) -> bool:
        """Whether the interval of a part excludes zero."""
        found = self.estimate(part)
        return found is not None and found.excludes_zero


class PopEfficiencies(RowPart):
    """The POP centre's efficiencies of a row's traced steps; plain ratios, 1: nothing is lost.

    *Useful* is the time in which a rank does not stand in communication. Products hold exactly:
    parallel = load balance × communication, communication = serialisation × transfer, global =
    parallel × computation scaling. Source: POP Centre of Excellence, "POP Standard Metrics"
    (co-design.pop-coe.eu/metrics).

    Attributes:
        parallel_efficiency: Mean useful time of the ranks over the run time.
        load_balance: Mean useful time over the longest.
        communication_efficiency: The longest useful time over the run time.
        serialisation_efficiency: The longest useful time over the run time on an ideal network.
        transfer_efficiency: Run time on an ideal network over the run time: the traced steps
            are played again with operations that take no time once all ranks have reached them.
        computation_scaling: Useful time of the plain baseline for the same samples over that of
            all ranks.
        global_efficiency: Parallel efficiency × computation scaling.
        unavailable: Field → why it is null.
    """

    parallel_efficiency: Estimate
    load_balance: Estimate
    communication_efficiency: Estimate
    serialisation_efficiency: Estimate | None = None
    transfer_efficiency: Estimate | None = None
    computation_scaling: Estimate | None = None
    global_efficiency: Estimate | None = None
    unavailable: dict[str, str] = {}


POP_NAMES = {
    "global_efficiency": "global",
    "parallel_efficiency": "parallel",
    "load_balance": "load balance",
    "communication_efficiency": "communication",
    "serialisation_efficiency": "serialisation",
    "transfer_efficiency": "transfer",
    "computation_scaling": "computation scaling",
}
"""Field of `PopEfficiencies` → its name, from the whole to the parts."""
