"""What a row says of its pipeline: bubbles, stage times, microbatches in flight, passes."""

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart


class StageTimes(RowPart):
    """A stage's times for one microbatch, seconds; means over the pipelines.

    A backward pass that the schedule splits has ``backward_input_s`` and ``backward_weight_s``.
    """

    stage: int
    rank: int
    forward_s: FiniteFloat | None = None
    backward_s: FiniteFloat | None = None
    backward_input_s: FiniteFloat | None = None
    backward_weight_s: FiniteFloat | None = None


class TimedPass(RowPart):
    """One pass of one microbatch through one stage, seconds after the step's first pass began.

    Attributes:
        kind: ``F`` forward, ``B`` backward; split: ``I`` for the inputs, ``W`` for the weights.
        planned_start_s: When the dry run with the measured stage times has it.
    """

    rank: int
    stage: int
    kind: str
    microbatch: int
    start_s: FiniteFloat
    end_s: FiniteFloat
    planned_start_s: FiniteFloat
    planned_end_s: FiniteFloat

    @property
    def name(self) -> str:
        """The pass as schedules write it: ``2F13``."""
        return f"{self.stage}{self.kind}{self.microbatch}"


class PipelineFigures(RowPart):
    """A row's pipeline.

    Attributes:
        num_pipelines: Side by side, each with ``num_ranks`` ranks.
        chunks: Stages of each rank.
        bubble_law: Idle part by the schedule's law, predicted; None: it has none.
        bubble_equal_stages: By a dry run with equal stages and a backward pass of twice the
            forward pass, predicted.
        bubble_measured_times: By a dry run with the measured stage times.
        idle_ratio: The part of the traced steps in which no action ran: the bubble, waits,
            transfer, optimizer and the host's own work together.
        in_flight: For each rank the most microbatches that it keeps for their backward passes, by
            the order in which it did them.
        actions: The passes of one typical step of the first pipeline; None: they are too many.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int
    chunks: int
    num_pipelines: int
    bubble_law: FiniteFloat | None
    bubble_equal_stages: FiniteFloat
    bubble_measured_times: FiniteFloat
    idle_ratio: FiniteFloat
    in_flight: list[int]
    stages: list[StageTimes]
    actions: list[TimedPass] | None
