"""Races: training towards a loss, and the optimizer settings with which a case trains."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.base import Spec

OptimizerName = Literal["adamw", "sgd", "nesterov", "lars", "lamb"]
ScalingRule = Literal["kept", "sqrt", "linear"]

OPTIMIZERS: dict[OptimizerName, str] = {
    "adamw": "AdamW (Loshchilov & Hutter 2019)",
    "sgd": "SGD with momentum",
    "nesterov": "SGD with Nesterov's momentum",
    "lars": "LARS (You et al. 2017)",
    "lamb": "LAMB (You et al. 2019)",
}


class Recipe(Spec):
    """With which optimizer and learning rate a case trains.

    The rate rises linearly from zero while the first ``warmup_samples`` are trained on, and stays
    constant then: no schedule's end favours one number of samples.

    Attributes:
        optimizer: Its name.
        learning_rate: After the warm-up.
        warmup_samples: Samples, not steps, so that it is as long for every batch.
        weight_decay: Decoupled for ``adamw`` and ``lamb``, added to the gradient for the others.
        momentum: The momentum of ``sgd``, ``nesterov`` and ``lars``; β₁ of ``adamw`` and ``lamb``.
    """

    optimizer: OptimizerName = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    warmup_samples: int = Field(0, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def needs_whole_layers(self) -> bool:
        """Whether a step of the optimizer depends on the norms of whole layers."""
        return self.optimizer in ("lars", "lamb")

    def rate_after(self, num_samples: int) -> float:
        """Return the learning rate of the step that ends after so many samples."""
        if num_samples >= self.warmup_samples:
            return self.learning_rate
        return self.learning_rate * num_samples / self.warmup_samples

    def for_batch(self, factor: float, rule: ScalingRule) -> Self:
        """Return the recipe for a batch ``factor`` times as large.

        Args:
            factor: New batch over old batch.
            rule: ``linear``: the rate grows with the batch (Goyal et al. 2017); ``sqrt``: with its
                root (Krizhevsky 2014); ``kept``: not at all.
        """
        scale = {"kept": 1.0, "sqrt": math.sqrt(factor), "linear": factor}[rule]
        return self.model_copy(update={"learning_rate": self.learning_rate * scale})


class Race(Spec):
    """Every case trains on the same samples, and its loss on held-out samples is followed.

    All see the same number of samples, whether they reach the target or not: so losses at equal
    samples and at equal time are known of all, and nothing depends on when somebody stopped.

    Attributes:
        samples: How many every case trains on.
        evaluate_every: Samples between two evaluations; a multiple of every batch.
        target_loss: Mean loss on the held-out samples; None: that of the plain baseline after
            ``target_after`` samples, the mean over its seeds.
        target_after: Samples; None: half of ``samples``.
    """

    samples: int = Field(gt=0)
    evaluate_every: int = Field(gt=0)
    target_loss: float | None = Field(None, gt=0)
    target_after: int | None = Field(None, gt=0)

    @property
    def baseline_samples(self) -> int:
        """After how many of its samples the baseline sets the target: an evaluation."""
        wanted = self.target_after or self.samples // 2
        return max(1, round(wanted / self.evaluate_every)) * self.evaluate_every

    @model_validator(mode="after")
    def _is_evaluated_at_its_end(self) -> Self:
        if self.samples % self.evaluate_every:
            raise ValueError(
                f"samples ({self.samples}) must be a multiple of evaluate_every "
                f"({self.evaluate_every})"
            )
        if self.baseline_samples > self.samples - self.evaluate_every:
            raise ValueError(
                "the baseline must set the target before its last evaluation: a target counts "
                "where it holds at two evaluations in a row. Lower target_after or evaluate_every"
            )
        return self
