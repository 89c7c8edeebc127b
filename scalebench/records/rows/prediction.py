"""What the cost model says of a row."""

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart


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
