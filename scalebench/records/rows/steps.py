"""What a row says of its steps, its communication, and of both by the cost model.

What a row says of its communication: operations, and who came last.

`scalebench trace` has them, too, and starts without scipy: nothing here imports an estimate.
"""

from typing import Literal

from pydantic import BaseModel, Field, FiniteFloat

from scalebench.spec.base import RowPart

RankPart = Literal["data_stall", "compute", "lateness"]


class RankExcess(RowPart):
    """A part of its steps for which one rank takes longer than the others.

    Attributes:
        part: ``data_stall``: it waits for its batches, in clean steps; ``compute``: it computes, in
            traced ones; ``lateness``: the others wait for it to arrive at an operation, likewise.
        own_s: Seconds per step, mean over steps and launches.
        others_s: The median of the other ranks, likewise.
        num_blocks: Blocks of steps that were compared, of all launches.
        num_longer: In how many of them it was longer.
        certain: False: the others waited for it in every traced step, but too few were traced to
            rule out chance.
    """

    part: RankPart
    rank: int
    own_s: FiniteFloat
    others_s: FiniteFloat
    num_blocks: int
    num_longer: int
    certain: bool = True


class StepKinds(RowPart):
    """How the steps of a row's first launch divide.

    Attributes:
        period: Steps after which short and long ones repeat; null: at no regular distance.
        short_s: Mean of the short ones, seconds.
        long_s: Mean of the long ones.
        long_share: How many of all steps are long; a plain ratio.
    """

    period: int | None = Field(None, ge=2)
    short_s: FiniteFloat
    long_s: FiniteFloat
    long_share: FiniteFloat = Field(gt=0, lt=1)


class Reproducible(BaseModel):
    """The losses of a row's launches, compared bit for bit in every rank.

    Attributes:
        equal: Whether all are the same.
        first_step: The first step whose losses differ, by number from 0; null: none.
        num_steps: So many steps were compared.
        num_launches: So many launches.
        seeds_differ: Whether torch's seed was another, so that a script sets none; null: it was not
            recorded, as in suites, whose seed is fixed.
        operations: Those that torch says are not deterministic, where the script asks it with
            ``use_deterministic_algorithms(True, warn_only=True)``.
    """

    equal: bool
    first_step: int | None = None
    num_steps: int
    num_launches: int
    seeds_differ: bool | None = None
    operations: list[str] = []

    @property
    def sentence(self) -> str:
        """What that comes to, without a full stop."""
        launches = f"{self.num_launches} launches"
        if self.equal:
            return f"{launches} have the same losses in {self.num_steps} steps, bit for bit"
        said = f"{launches} have other losses from step {self.first_step} on"
        if self.seeds_differ:
            return f"{said}: torch's seed differs, as nothing sets it"
        if self.operations:
            return (
                f"{said}; torch says of {', '.join(self.operations)} that it is not deterministic"
            )
        return said


class OperationFigures(RowPart):
    """Operations of one sort, per step.

    Attributes:
        kind: For example ``all_reduce``.
        ordinal: Which operation of a step; for DDP the bucket. None: all of the kind.
        phase: In which most of them were asked for.
        count: Operations per step.
        num_bytes: Bytes per step, full sizes; None: a size is not known.
        total_s: Union of their intervals, seconds per step.
        exposed_s: The part of it in which the rank did not compute.
        hidden_s: The rest.
    """

    kind: str
    ordinal: int | None
    phase: str
    count: FiniteFloat
    num_bytes: FiniteFloat | None
    total_s: FiniteFloat
    exposed_s: FiniteFloat
    hidden_s: FiniteFloat


class AxisFigures(RowPart):
    """Operations along one dimension of the mesh, per step.

    Attributes:
        axis: Name of the dimension.
        num_ranks: Ranks of a group along it.
        count: Operations per step.
        num_bytes: Bytes per step, full sizes; None: a size is not known.
        wire_bytes: Bytes that a rank sends for it by the ring's law; None: likewise.
        predicted_wire_bytes: The same by the strategy's law; None: there is none.
        total_s: Union of their intervals, seconds per step.
        exposed_s: The part of it in which the rank did not compute.
        wait_s: The part of that in which it waited for other ranks; None: it is not known.
        groups: The ranks of every group along it; None: not recorded.
    """

    axis: str
    num_ranks: int
    count: FiniteFloat
    num_bytes: FiniteFloat | None
    wire_bytes: FiniteFloat | None
    predicted_wire_bytes: FiniteFloat | None = None
    total_s: FiniteFloat
    exposed_s: FiniteFloat
    wait_s: FiniteFloat | None
    groups: list[list[int]] | None = None

    @property
    def wire_byte_per_s(self) -> float | None:
        """Bytes that a rank sends along it in a second of its operations; None: not known."""
        if self.wire_bytes is None or self.total_s <= 0:
            return None
        return self.wire_bytes / self.total_s


class Straggler(RowPart):
    """How often one rank came last, and by how much.

    Attributes:
        count: Matched operations to which it came last.
        share: The same of all matched operations; the shares of all ranks sum to 1.
        median_late_s: How long after the first, where it was the last; seconds.
        longest_run: Most operations in a row to which it came last.
    """

    rank: int
    count: int
    share: FiniteFloat
    median_late_s: FiniteFloat
    longest_run: int

    def stands_out(self, num_ranks: int) -> bool:
        """Tell whether this is more than taking turns: half as often again as by chance."""
        return self.share >= 1.5 / num_ranks


class PredictedOperation(RowPart):
    """One operation of the step, predicted and measured, seconds.

    Attributes:
        ready_s: When it is asked for, after the step began.
        low_s: At the lower end of the link's 95 % interval.
        high_s: At the upper end.
        measured_s: Median transfer, without waiting; None: it was not matched.
    """

    op: str
    size_bytes: int
    ready_s: FiniteFloat
    predicted_s: FiniteFloat
    low_s: FiniteFloat
    high_s: FiniteFloat
    measured_s: FiniteFloat | None


class PredictionFromFewer(RowPart):
    """The row as predicted without any knowledge of this many ranks, or of more; seconds.

    Attributes:
        prediction_error: Predicted over measured step, minus 1.
        reason: Why there is no such prediction.
        textbook_step_s: By bandwidth terms alone: nothing overlaps.
        link_world_sizes: Numbers of ranks at which the link was measured.
    """

    predicted_step_s: FiniteFloat | None = None
    prediction_error: FiniteFloat | None = None
    reason: str | None = None
    textbook_step_s: FiniteFloat | None = None
    link_low_s: FiniteFloat | None = None
    link_high_s: FiniteFloat | None = None
    link_world_sizes: list[int] = []


class ChangedStep(RowPart):
    """The row predicted with one thing changed.

    Attributes:
        change: In words.
        bucket_mb: Size of DDP's buckets, MiB; None: as measured.
        gradient_bits: Bits of each gradient on the wire; None: as measured.
        microbatches: Of a pipeline; None: as measured.
        times_bandwidth: So many times the link's bandwidth.
        step_s: Predicted.
        gain: The part of the predicted step that the change saves.
        efficiency: That the changed step means; None: the row has no measured efficiency.
    """

    change: str
    bucket_mb: FiniteFloat | None = None
    gradient_bits: int | None = None
    microbatches: int | None = None
    times_bandwidth: FiniteFloat = 1.0
    step_s: FiniteFloat
    gain: FiniteFloat
    efficiency: FiniteFloat | None = None

    def changes(self, name: str) -> bool:
        """Tell whether this is what is changed: the name of a field."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)


class Prediction(RowPart):
    """A row's prediction; ``predicted_step_s`` of the row is its step. Seconds.

    Attributes:
        computing_s: Forward, backward, optimizer.
        contention: How much longer than at N=1 it takes, since other ranks compute at the same
            time, as plain ranks were measured; None: not measured, and taken to be 1.
        longer_s: What ranks that played the step without its model, all at once, took longer for
            it than the links say, or the schedule of a pipeline; there it takes the place of
            contention. Below zero: messages took less. None: no ranks played it.
        bubble_s: The part of it in which a pipeline's rank has nothing to do by the schedule.
        exposed_comm_s: Communication that nothing hides.
        link_low_s: The step with every operation at the lower end of its 95 % interval.
        link_high_s: At the upper end.
        link_world_sizes: Numbers of ranks at which the link was measured.
        base_world_size: The N whose steps it starts from: 1, or of a script that sends nothing at
            N=1 the smallest that was measured.
        launch_spread: Standard error of the logarithm of the step at that N, over its launches.
        launch_dof: Degrees of freedom behind it: launches but one; 0: nothing tells the spread.
        link_dof: The fewest behind the interval of an operation's time; None: they do not count.
        outside: Sizes at which a line of the link was continued beyond its support, in words.
        low_s: Lower end of the prediction's interval; None: no other row tells the model's error.
        confidence: Of that interval.
        typical_error: Of the model in the run's other rows, a plain ratio.
        efficiency: That the predicted step means.
    """

    computing_s: FiniteFloat
    contention: FiniteFloat | None = None
    longer_s: FiniteFloat | None = None
    bubble_s: FiniteFloat
    exposed_comm_s: FiniteFloat
    link_low_s: FiniteFloat
    link_high_s: FiniteFloat
    link_world_sizes: list[int]
    base_world_size: int = 1
    launch_spread: FiniteFloat
    launch_dof: int = 0
    link_dof: FiniteFloat | None = None
    outside: list[str] = []
    operations: list[PredictedOperation] = []
    left_out: PredictionFromFewer = PredictionFromFewer()
    what_if: list[ChangedStep] = []
    low_s: FiniteFloat | None = None
    high_s: FiniteFloat | None = None
    confidence: FiniteFloat | None = None
    typical_error: FiniteFloat | None = None
    efficiency: FiniteFloat | None = None
