"""What a row says of one kind of strategy besides: of balance, compression, experts, pipelines."""

from statistics import median
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from scalebench.spec.base import RowPart
from scalebench.stats import Estimate


class BalanceFigures(RowPart):
    """Of a row's first launch. What ranks compute was measured at equal shares, at its start.

    Attributes:
        shares: Samples of each rank at the end; they sum to the global batch.
        history: The steps from which on shares were in force, warm-up included, and the shares.
        num_changes: How often shares changed, warm-up included.
        sample_s: What a sample took each rank at equal shares, seconds, waiting not included.
        equal_s: Derived: what the slowest rank computes at equal shares.
        ideal_s: Derived: N / Σ(1/t), t being what each rank computes at equal shares.
        balanced_s: Derived: what the rank that is ready last computes with ``shares``.
    """

    shares: list[int]
    history: list[tuple[int, list[int]]] = []
    num_changes: int = Field(ge=0)
    sample_s: list[FiniteFloat]
    equal_s: FiniteFloat
    ideal_s: FiniteFloat
    balanced_s: FiniteFloat


class LossComparison(RowPart):
    """A method's loss next to that of ``none``, the exact all-reduce.

    Attributes:
        equal_steps: Steps that all methods of the suite trained.
        loss_after_steps: After these.
        equal_s: Seconds that all methods trained, steps times the clean step.
        loss_after_s: After these.
        target_loss: What ``none`` has after the equal steps.
        steps_to_target: Until a method has it; None: not in this run.
    """

    equal_steps: int
    loss_after_steps: FiniteFloat
    loss_of_none_after_steps: FiniteFloat
    equal_s: FiniteFloat
    loss_after_s: FiniteFloat
    loss_of_none_after_s: FiniteFloat
    target_loss: FiniteFloat
    steps_to_target: int | None
    time_to_target_s: FiniteFloat | None
    time_of_none_to_target_s: FiniteFloat | None


class CompressionFigures(RowPart):
    """A row's compression; bytes and seconds per rank and step.

    Attributes:
        collective: By which messages are exchanged.
        gradient_bytes: The gradients before compression.
        payload_bytes: What a rank hands to the collectives.
        wire_bytes: What it sends by the ring's law.
        payload_ratio: Payload over gradients.
        nominal_ratio: The same by the method's definition; None: it depends on the gradient.
        gradient_error: ‖g − g_exact‖ / ‖g_exact‖ of the mean gradient.
        gradient_cosine: Between the two.
        gradient_error_step: The step in which they were compared.
        codec_s: Encoding and decoding, of clean steps; means over the ranks.
        communicate_s: Union of the collectives, of traced steps.
        transfer_s: The same without waiting for other ranks.
        break_even_byte_per_s: Bandwidth below which the method pays if nothing overlaps.
        unavailable: Name of a null field → why it is null.
        losses: Only of a suite that has ``none``, as the fields below.
        step_ratio_to_none: The step over that of ``none``.
        break_even_replayed_byte_per_s: Bandwidth below which the step is predicted to be shorter.
        link_byte_per_s: What the calibrated link gives.
    """

    method: str
    settings: dict[str, Any]
    collective: str
    num_buckets: int
    gradient_bytes: int
    payload_bytes: int
    wire_bytes: int
    payload_ratio: FiniteFloat | None
    nominal_ratio: FiniteFloat | None
    gradient_error: FiniteFloat | None
    gradient_cosine: FiniteFloat | None
    gradient_error_step: int | None
    encode_s: Estimate | None
    decode_s: Estimate | None
    codec_s: Estimate | None
    communicate_s: Estimate | None
    transfer_s: Estimate | None
    break_even_byte_per_s: Estimate | None
    unavailable: dict[str, str] = {}
    losses: LossComparison | None = None
    step_ratio_to_none: Estimate | None = None
    break_even_replayed_byte_per_s: Estimate | None = None
    link_byte_per_s: FiniteFloat | None = None


STANDS_OUT = 1.5
"""Times as long for a token as on the other ranks; from there on a rank is called slow."""


class ExpertRank(RowPart):
    """What one rank's experts did in a step.

    Attributes:
        first_expert: Of every layer; its experts come one after the other.
        tokens: That came to them in a step, all layers together; one that goes to two counts twice.
        experts_s: What they computed on them in forward, seconds per traced step; None: not known.
        token_s: The same for one token, seconds.
    """

    rank: int
    first_expert: int
    num_experts: int
    tokens: FiniteFloat
    experts_s: FiniteFloat | None = None
    token_s: FiniteFloat | None = None


class BusiestExpert(RowPart):
    """The expert with the most tokens.

    Attributes:
        times_mean: Its tokens over the mean of its layer's experts.
    """

    layer: int
    expert: int
    times_mean: FiniteFloat


class ExpertFigures(RowPart):
    """How a mixture's tokens spread over its experts: means over the clean steps of all launches.

    Attributes:
        num_experts: In every layer.
        ranks_per_group: Among which they are divided.
        tokens: Layer → expert → tokens that it had in a step, of all ranks; one that goes to two
            experts counts twice.
        imbalance: Most tokens of an expert over the mean of all in its layer and step; 1: even.
        rank_imbalance: Most tokens of a rank over the mean of all ranks in a step; 1: even. Who
            has fewer waits.
        dropped_share: Of all choices of the router, those that found their expert full.
        busiest: The expert with the most tokens against the mean of its layer.
        all_to_all_share: Part of the traced steps in which all-to-alls were on their way, mean over
            ranks; None: not traced.
        ranks: In order.
    """

    num_experts: int
    ranks_per_group: int
    tokens: list[list[FiniteFloat]]
    imbalance: FiniteFloat
    rank_imbalance: FiniteFloat
    dropped_share: FiniteFloat
    busiest: BusiestExpert
    all_to_all_share: FiniteFloat | None
    ranks: list[ExpertRank]

    @property
    def slow_rank(self) -> tuple[ExpertRank, float] | None:
        """The rank whose experts take longest for a token, and times as long as the others' median.

        None: no rank stands out, or it is not known.
        """
        known = [rank for rank in self.ranks if rank.token_s]
        if len(known) < 2 or len(known) < len(self.ranks):
            return None
        slowest = max(known, key=lambda rank: rank.token_s or 0.0)
        others = [rank.token_s for rank in known if rank is not slowest and rank.token_s]
        times = (slowest.token_s or 0.0) / median(others)
        return (slowest, times) if times >= STANDS_OUT else None


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class ExposedEstimates(RowPart):
    """Exposed communication, seconds per step, estimated in three ways.

    Attributes:
        trace: By the intervals of traced steps.
        differential: A step with synchronisation minus one without.
        ddp_logger: As DDP's own logger has it.
        disagree: The pairs whose intervals do not overlap; None: intervals are missing.
        unavailable: Name of a null estimate → why, where the strategy is the reason.
    """

    trace: Estimate | None = None
    differential: Estimate | None = None
    ddp_logger: Estimate | None = None
    disagree: list[Pair] | None = None
    unavailable: dict[str, str] = {}

    @property
    def by_name(self) -> dict[str, Estimate]:
        """The estimates that there are."""
        found = {
            "trace": self.trace, "differential": self.differential, "ddp_logger": self.ddp_logger,
        }  # fmt: skip
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def disagreements(self, least_s: float) -> list[tuple[str, Estimate, str, Estimate]]:
        """Return the pairs that disagree, and by more than some seconds."""
        known = self.by_name
        pairs = [(a, known.get(a), b, known.get(b)) for a, b in self.disagree or ()]
        return [
            (a, first, b, second)
            for a, first, b, second in pairs
            if first is not None
            and second is not None
            and abs(first.value - second.value) > least_s
        ]


class FrameworkFacts(RowPart):
    """The framework of a row, as its rank 0 saw it.

    Attributes:
        versions: Distribution → version; null: not found.
        untested: Of these, the ones in a version that scalebench's tests do not run with.
        tested: Distribution → the version that the tests run with; empty: an older launch, which
            does not say.
        settings: What the framework itself says is in force, by its own names.
        uncounted_memory: What ``peak_memory_bytes`` leaves out; null: nothing.
    """

    versions: dict[str, str | None]
    untested: list[str] = []
    tested: dict[str, str] = {}
    settings: dict[str, Any] = {}
    uncounted_memory: str | None = None


class AgainstFastest(RowPart):
    """How a row compares with the row of the shortest step, among frameworks at one N.

    Attributes:
        fastest: Suite, case and N of the row with the shortest step; it may be this one.
        step_ratio: This row's step over that one's, over the rounds that both ran in. All such
            intervals at this N hold together with 95 %. 1 exactly for the fastest itself.
    """

    fastest: tuple[str, str, int]
    step_ratio: Estimate


class AxisSaving(RowPart):
    """What one dimension of a mesh takes off a rank's peak, bytes, by its law.

    Attributes:
        axis: Name of the dimension.
        num_ranks: Along it.
        state_bytes: Of parameters, gradients at the peak and the optimizer's state.
        activations_bytes: Of activations.
    """

    axis: str
    num_ranks: int
    state_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.state_bytes + self.activations_bytes


class MemoryByAxis(RowPart):
    """A rank's predicted peak as what is left of one process, bytes.

    Attributes:
        one_process_bytes: Predicted peak of one process that trains on the whole batch.
        savings: What each dimension takes off what those before it leave, in order.
        rank_bytes: What is left.
    """

    one_process_bytes: int
    savings: list[AxisSaving]
    rank_bytes: int


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
