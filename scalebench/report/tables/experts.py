"""How tokens spread over experts, as tables: for each row, and for each of its ranks."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.strategies import ExpertFigures, ExpertRank
from scalebench.records.summary import Row
from scalebench.report.tables.layout import Column, Table, ending, pages, placed, value
from scalebench.report.words import wording

BUSY = 1.5
"""Times the even share; from there on an expert is called busy."""

ExpertsOfRow = tuple[Row, ExpertFigures]
OfRank = tuple[Row, ExpertRank]


def busiest(figures: ExpertFigures) -> str:
    """Name the expert with the most tokens: ``"3 of layer 1, 2.10×"``."""
    one = figures.busiest
    return f"{one.expert} of layer {one.layer}, {one.times_mean:.2f}×"


FIGURES: tuple[Column[ExpertsOfRow], ...] = placed(
    Column("experts", lambda one: str(one.num_experts)),
    Column("ranks", lambda one: str(one.ranks_per_group)),
    Column("imbalance", lambda one: f"{one.imbalance:.2f}"),
    Column("of ranks", lambda one: f"{one.rank_imbalance:.2f}"),
    Column("busiest", busiest, numeric=False),
    Column("dropped", lambda one: units.percent(one.dropped_share)),
    value("all-to-all", lambda one: one.all_to_all_share, units.percent),
)

OF_RANK: tuple[Column[OfRank], ...] = placed(
    Column("rank", lambda one: str(one.rank)),
    Column("experts", lambda one: _numbers(one)),
    Column("tokens", lambda one: f"{one.tokens:.4g}"),
    value("forward", lambda one: one.experts_s, units.seconds_or_zero),
    value("per token", lambda one: one.token_s, units.seconds_or_zero),
)


def sentence(rows: Sequence[Row]) -> str | None:
    """Say whose experts are slow, or else which expert is the busiest; None: there are none."""
    found = _of_rows(rows)
    if not found:
        return None
    slow = slow_sentence(rows)
    if slow:
        return slow
    row, figures = max(found, key=lambda one: one[1].busiest.times_mean)
    one = figures.busiest
    if one.times_mean < BUSY:
        return f"No expert has more than {BUSY:g} times the even share of the tokens."
    waits = ": the other ranks wait for the one that has it" if row.world_size > 1 else ""
    return (
        f"In {wording.place(row)}, expert {one.expert} of layer {one.layer} has"
        f" {one.times_mean:.2g} times the even share of the tokens{waits}."
    )


def slow_sentence(rows: Sequence[Row]) -> str | None:
    """Say which rank's experts take longer for a token than the others; None: no rank's do."""
    slow = [(row, *figures.slow_rank) for row, figures in _of_rows(rows) if figures.slow_rank]
    if not slow:
        return None
    row, rank, times = max(slow, key=lambda one: one[2])
    return (
        f"In {wording.place(row)}, the experts of rank {rank.rank} ({_numbers(rank)}) take"
        f" {times:.2g} times as long for a token as those of the other ranks, which wait for them."
    )


def _numbers(rank: ExpertRank) -> str:
    last = rank.first_expert + rank.num_experts - 1
    return str(last) if last == rank.first_expert else f"{rank.first_expert} to {last}"


def _of_rows(rows: Sequence[Row]) -> list[ExpertsOfRow]:
    return [(row, row.experts) for row in rows if row.experts is not None]


EXPERTS = Table(
    "Experts",
    FIGURES,
    _of_rows,
    remark="mean over the clean steps",
    about=(
        "Imbalance: most tokens of an expert, or of a rank, over the mean; 1 is even. Dropped: "
        "choices of the router that found the expert full. All-to-all: part of the traced step in "
        "which tokens were on their way, waiting included; the communication by axis has the "
        "waiting separately."
    ),
    below=ending(sentence),
)
tables = pages(
    EXPERTS,
    Table(
        "Experts of every rank",
        OF_RANK,
        lambda rows: [(row, rank) for row, figures in _of_rows(rows) for rank in figures.ranks],
        about=("Per step, all layers together. Forward: what the rank's experts computed."),
    ),
)
