"""What a row says of a race: when it reached the target, and what its ranks did meanwhile."""

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart
from scalebench.stats import Estimate


class RaceFigures(RowPart):
    """A case's race towards a loss, over its seeds.

    Estimates are geometric means over seeds, losses means, with Student's t interval. Ratios are
    formed between launches of the same seed: the same initial parameters and samples.

    Attributes:
        target_loss: Mean loss on the held-out samples.
        target_from: Who set it: ``given``, or which case after how many samples.
        baseline: Case and ranks that the ratios compare with.
        samples: That every seed trained on.
        num_seeds: Launches.
        num_reached: Of these, how many reached the target, and held it at the next evaluation.
        time_to_target_s: Of training; null where a seed did not reach it.
        elapsed_to_target_s: The same with the evaluations until then.
        samples_to_target: Of all ranks together.
        steps_to_target: Steps of the optimizer.
        bytes_to_target: On the wire, of the rank that sends most. Derived: steps times a step's
            bytes; counted where ranks do not exchange in every step.
        energy_to_target_j: Derived: samples times a sample's energy.
        median_time_to_target_s: Over the seeds, one that did not reach it being later than all
            that did; null where half of them or more did not.
        statistical_efficiency: Samples that the baseline needs over samples that this needs.
        hardware_efficiency: Samples per second over N times those of the baseline, until each
            reached the target.
        speedup_to_target: Time that the baseline needs over time that this needs: N times the
            product of the two efficiencies.
        noise_scale: Gradient noise scale of the baseline until it reached the target, samples; from
            held-out samples at the end of each block of steps.
        noise_scale_of_steps: The same of this row's own training, from the gradients that its ranks
            had in its steps; DDP on several ranks.
        predicted_statistical_efficiency: Predicted: what the noise scale leaves of the baseline's
            at this batch, each batch at its best learning rate.
        final_loss: After all samples.
        lowest_loss: Of all seeds and evaluations.
        equal_time_s: The shortest training time of any launch of the suite.
        loss_at_equal_time: After so many seconds of training.
        unavailable: Field → why it is null.
    """

    target_loss: FiniteFloat
    target_from: str
    baseline: tuple[str, int]
    samples: int
    num_seeds: int
    num_reached: int
    time_to_target_s: Estimate | None = None
    elapsed_to_target_s: Estimate | None = None
    samples_to_target: Estimate | None = None
    steps_to_target: Estimate | None = None
    bytes_to_target: Estimate | None = None
    energy_to_target_j: Estimate | None = None
    median_time_to_target_s: FiniteFloat | None = None
    statistical_efficiency: Estimate | None = None
    hardware_efficiency: Estimate | None = None
    speedup_to_target: Estimate | None = None
    noise_scale: Estimate | None = None
    noise_scale_of_steps: Estimate | None = None
    predicted_statistical_efficiency: FiniteFloat | None = None
    final_loss: Estimate | None = None
    lowest_loss: FiniteFloat | None = None
    equal_time_s: FiniteFloat | None = None
    loss_at_equal_time: Estimate | None = None
    unavailable: dict[str, str] = {}


class RankShares(RowPart):
    """Where one rank's time went: parts of the training, which sum to 1; means over the launches.

    Attributes:
        compute: Its own work.
        exchange: From the start of an exchange until it has the result, transfer and waiting
            together; of traced steps the transfer alone.
        wait: For ranks that are slower: until the end of a block of steps; of traced steps in
            operations too.
        num_batches: That it trained in a launch; null: as many as there were steps.
    """

    rank: int
    compute: FiniteFloat
    exchange: FiniteFloat
    wait: FiniteFloat
    num_batches: FiniteFloat | None = None


class StageFigures(RowPart):
    """How old the weights of a stage's gradients were, and what keeping them took, with its law.

    Attributes:
        stage: From 0.
        staleness: The most steps between the weights of a gradient and the step by it.
        weight_versions: The most that were kept at a time, the newest ones among them.
        stash_bytes: The most that the others took.
    """

    stage: int
    staleness: int
    staleness_law: int
    weight_versions: int
    weight_versions_law: int
    stash_bytes: int
    stash_law_bytes: int


class LockstepFigures(RowPart):
    """Where the ranks' time went, and what training without lockstep cost instead.

    Attributes:
        ranks: In order.
        traced: Whether traced steps told, not the strategy's own clock.
        staleness: Steps that a server or a stage made between a gradient's parameters and its
            arrival → gradients, of all of them and all launches; null: there are none.
        stages: Of a pipeline that is never flushed, in order; null: it is none.
        num_dropped: Of these, gradients that came after the step that they were for.
    """

    ranks: list[RankShares]
    traced: bool
    staleness: dict[int, int] | None = None
    stages: list[StageFigures] | None = None
    num_dropped: int = 0

    @property
    def mean_staleness(self) -> float | None:
        """The mean over the gradients; None: not counted."""
        counts = self.staleness or {}
        total = sum(counts.values())
        return sum(steps * count for steps, count in counts.items()) / total if total else None
