"""What a search came to, as a table, a page and JSON have it."""

from typing import Any

from scalebench.analysis.search.scores import Scores
from scalebench.costmodel.search.choice import Choice
from scalebench.records.base import Record

FORMAT = "scalebench.search/1"


class RankedChoice(Choice):
    """A choice with its interval, and how it can be run.

    Attributes:
        name: Of its case in a suite.
        low_s: Lower end of the 90 % interval of the step; null: no error of the model is known.
        high_s: Upper end.
        strategy: What runs it here, as suites have it; null: see ``cannot_run``.
        cannot_run: Why no strategy of scalebench trains it; null: one does.
    """

    case: str
    low_s: float | None = None
    high_s: float | None = None
    strategy: dict[str, Any] | None = None
    cannot_run: str | None = None


class MeasuredChoice(Record):
    """A choice that was trained.

    Attributes:
        picked: ``best``, ``random`` or ``rejected``: why it was trained.
        measured_s: Its step; null: see ``reason``.
        fits: Whether it stayed below the memory limit: its measured peak, or that it ran out of
            memory; null: there is no limit, or no peak was measured.
    """

    case: str
    picked: str
    predicted_s: float
    measured_s: float | None
    predicted_bytes: float
    measured_bytes: int | None
    reason: str | None = None
    fits: bool | None = None


class Experiment(Record):
    """The choices that were trained, and what that says of the search.

    Attributes:
        run: Folder of the run.
        rank_correlation: Spearman's, of predicted and measured steps; null: fewer than 3.
        regret: Measured step of the first choice over the fastest measured one; 1: it is that.
        error: Root mean square of ``ln(predicted/measured)`` of the steps.
    """

    run: str
    rows: tuple[MeasuredChoice, ...]
    rank_correlation: float | None
    regret: float | None
    error: float | None


class SearchResult(Record):
    """A search.

    Attributes:
        assumptions: What the prediction rests on, in words.
        num_candidates: Configurations of the space.
        num_meshes: Their meshes.
        refused_meshes: Why meshes are not in the space → how many.
        num_fitting: Whose memory, with the margin, is below the limit.
        num_evaluated: Whose step was predicted; of the other fitting ones a bound was enough.
        error: Root mean square of ``ln(predicted/measured)``; null: nothing was compared.
        error_told: Where that is from.
        probability: That the mesh of the first is the fastest; null: no error is known.
        why: Why the first beats the second, one sentence.
        best: The fastest of each mesh and ZeRO stage.
        trained: As ``best``, of what a strategy of scalebench trains: the fastest such way of each
            mesh and ZeRO stage.
        front: Least memory first, least time last.
        rejected: Of what does not fit, the one that needs least memory and can be trained; null:
            all fit.
        scores: What the models were compared with on this machine.
        took_s: The search alone, seconds.
    """

    format: str = FORMAT
    workload: str
    num_parameters: int
    world_size: int
    global_batch: int
    device: str
    memory_limit_bytes: int | None
    margin: float
    margin_told: str
    assumptions: tuple[str, ...]
    num_candidates: int
    num_meshes: int
    refused_meshes: dict[str, int]
    num_fitting: int
    num_evaluated: int
    error: float | None
    error_told: str
    probability: float | None
    why: str
    best: tuple[RankedChoice, ...]
    trained: tuple[RankedChoice, ...] = ()
    front: tuple[RankedChoice, ...]
    rejected: RankedChoice | None
    scores: Scores
    took_s: float
    measured: Experiment | None = None
