"""What a rank writes of a race: the loss on held-out samples, again and again."""

from pydantic import Field, FiniteFloat

from scalebench.records.base import Record


class GradientNorms(Record):
    """Squared norms of gradients of equal batches, all at the same parameters.

    Attributes:
        num_batches: How many.
        batch_size: Samples of each.
        mean_square: Mean of the squared norms of their gradients.
        square_of_mean: Squared norm of the mean of their gradients.
    """

    num_batches: int = Field(ge=2)
    batch_size: int = Field(ge=1)
    mean_square: FiniteFloat = Field(ge=0)
    square_of_mean: FiniteFloat = Field(ge=0)


class RacePoint(Record):
    """An evaluation.

    Attributes:
        samples: That all ranks together had trained on.
        trained_s: Seconds of training until then, without evaluations.
        elapsed_s: Seconds since the start of the race, evaluations included.
        loss: Mean over the held-out samples; null: it was not finite.
        gradients: Norms on the held-out samples; null: not taken, as on several ranks.
        step_gradients: Norms of the gradients of the last step before it: each rank's own on its
            part of the batch, and their mean; null: not taken, as without DDP.
        sent_bytes: That the rank which sends most had sent in training, ring-equivalent; null: the
            strategy does not count them, and each step sends as many.
    """

    samples: int = Field(ge=0)
    trained_s: FiniteFloat = Field(ge=0)
    elapsed_s: FiniteFloat = Field(ge=0)
    loss: FiniteFloat | None
    gradients: GradientNorms | None = None
    step_gradients: GradientNorms | None = None
    sent_bytes: FiniteFloat | None = Field(None, ge=0)
