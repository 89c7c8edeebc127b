"""Pipelines and experts as tables; and a schedule drawn as text."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from scalebench import units
from scalebench.costmodel.pipeline_schedule import STYLES, Action, bubble_law
from scalebench.costmodel.pipeline_step import Timeline
from scalebench.records.rows.strategies import (
    ExpertFigures,
    ExpertRank,
    PipelineFigures,
    StageTimes,
)
from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    Column,
    Screen,
    Table,
    ending,
    line,
    pages,
    placed,
    value,
)
from scalebench.report.words import wording

MOST_RANKS = 8
"""Of a row, whose microbatches in flight are written one by one."""

Pair = tuple[Row, PipelineFigures]
Stage = tuple[Row, StageTimes]
BUSY = 1.5
"""Times the even share; from there on an expert is called busy."""

ExpertsOfRow = tuple[Row, ExpertFigures]
OfRank = tuple[Row, ExpertRank]


def _pipelines(rows: Sequence[Row]) -> list[Pair]:
    return [(row, row.pipeline) for row in rows if row.pipeline]


def _sizes(pipeline: PipelineFigures) -> str:
    side_by_side = pipeline.num_pipelines
    several = f"{side_by_side} × " if side_by_side > 1 else ""
    sizes = f"{pipeline.num_ranks} × {pipeline.chunks}, {pipeline.num_microbatches}"
    return several + sizes


def _in_flight(pipeline: PipelineFigures) -> str:
    kept = pipeline.in_flight
    return ", ".join(map(str, kept)) if len(kept) <= MOST_RANKS else f"at most {max(kept)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


BUBBLES: tuple[Column[Pair], ...] = placed(
    Column("schedule", lambda one: wording.plain(one.schedule, 40), numeric=False),
    Column("ranks × stages, microbatches", _sizes, numeric=False),
    value("bubble", lambda one: one.bubble_measured_times, _percent),
    value("by the law", lambda one: one.bubble_law, _percent),
    value("equal stages", lambda one: one.bubble_equal_stages, _percent),
    value("no pass", lambda one: one.idle_ratio, _percent),
    Column("in flight", _in_flight, numeric=False),
)

STAGES: tuple[Column[Stage], ...] = placed(
    Column("stage", lambda one: str(one.stage)),
    Column("on", lambda one: f"rank {one.rank}", numeric=False),
    value("forward", lambda one: one.forward_s, units.seconds),
    value("backward", lambda one: one.backward_s, units.seconds),
    value("for the inputs", lambda one: one.backward_input_s, units.seconds),
    value("for the weights", lambda one: one.backward_weight_s, units.seconds),
)

tables = pages(
    Table(
        "Pipelines",
        BUBBLES,
        _pipelines,
        about=(
            "Idle part of all ranks' time. Bubble: a dry run of what the ranks did, with the"
            " measured times of the stages, nothing for transfer. By the law, equal stages:"
            " predicted. No pass: the part of the traced steps in which no pass ran, for whatever"
            " reason. In flight: the most microbatches that each rank keeps for their backward"
            " pass, for each of its stages."
        ),
    ),
    Table(
        "Every stage",
        STAGES,
        lambda rows: [(row, stage) for row, found in _pipelines(rows) for stage in found.stages],
        about="One microbatch in traced steps, medians; tracing's own cost included.",
        folded=True,
    ),
)


COLORS = {"F": "blue", "B": "green", "I": "cyan", "W": "yellow"}
IDLE = "·"
STRETCH = "─"
MOST_RANKS_IN_FLIGHT = 16


def render_schedule(timeline: Timeline, screen: Screen) -> str:
    """Return the drawing of a dry run, and what it says of bubble and memory.

    Times are of whole units: one unit is a column, as wide as the longest name. On a terminal that
    is too narrow each column stands for more time and only the kinds of the passes are shown.
    """
    schedule = timeline.schedule
    rows = [f"rank {rank}" for rank in range(schedule.num_ranks)]
    room = screen.width - max(map(len, rows)) - 2
    several = schedule.num_stages > schedule.num_ranks
    names = [[_name(a, several) for a in actions] for actions in schedule.ranks]
    cell = max(len(name) for of_rank in names for name in of_rank) + 1
    units = round(timeline.step_s)
    drawn = (
        (_cells(timeline, rank, names[rank], cell) for rank in range(schedule.num_ranks))
        if units * cell <= room
        else (_summed_up(timeline, rank, room) for rank in range(schedule.num_ranks))
    )
    screen.width = max(screen.width, units * cell)
    for label, parts in zip(rows, drawn, strict=True):
        text = Text(label.ljust(max(map(len, rows)) + 2))
        for content, kind in parts:
            style = COLORS.get(kind, "") if screen.color else ""
            text.append(line(content, screen.ascii_only, style))
        text.no_wrap = True
        screen.add(text)
    screen.line()
    screen.lines(_in_words(timeline))
    return screen.text()


def _name(action: Action, several: bool) -> str:
    """Return how an action is written; the stage only where a rank has several."""
    return str(action) if several else f"{action.kind}{action.microbatch}"


def _cells(timeline: Timeline, rank: int, names: list[str], cell: int) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a rank's line, and the kind of each; idle time has none."""
    reached = 0
    actions = timeline.schedule.ranks[rank]
    for action, name, start, end in zip(
        actions, names, timeline.start_s[rank], timeline.end_s[rank], strict=True
    ):
        begin, until = round(start) * cell, round(end) * cell
        yield "".join(IDLE + " " * (cell - 1) for _ in range((begin - reached) // cell)), ""
        yield name.ljust(until - begin - 1, STRETCH) + " ", action.kind
        reached = until
    left = (round(timeline.step_s) * cell - reached) // cell
    yield "".join(IDLE + " " * (cell - 1) for _ in range(left)), ""


def _summed_up(timeline: Timeline, rank: int, room: int) -> Iterator[tuple[str, str]]:
    """Yield one character for each part of the step: what the rank does in its middle."""
    position = 0
    actions = timeline.schedule.ranks[rank]
    starts, ends = timeline.start_s[rank], timeline.end_s[rank]
    for column in range(room):
        middle = (column + 0.5) * timeline.step_s / room
        while position < len(ends) and ends[position] <= middle:
            position += 1
        if position < len(ends) and starts[position] <= middle:
            yield actions[position].kind, actions[position].kind
        else:
            yield IDLE, ""


def _in_words(timeline: Timeline) -> list[str]:
    schedule = timeline.schedule
    p, m = schedule.num_ranks, schedule.num_microbatches
    v = schedule.num_stages // p
    law = bubble_law(schedule.name, p, m, v)
    by_law = "" if law is None else f"; by the law {_law(v)} {100 * law:.1f} %"
    chunks = "" if v == 1 else f", {v} chunks on each"
    kept = schedule.in_flight()
    each = ", ".join(map(str, kept)) if p <= MOST_RANKS_IN_FLIGHT else f"at most {max(kept)}"
    of = "of a chunk " if v > 1 else ""
    style = STYLES[schedule.name].torch_name
    words = "F forward, B backward, which takes twice as long"
    if any(action.kind == "W" for action in schedule.ranks[0]):
        words += "; I its part for the inputs, W that for the weights"
    return [
        f"{schedule.name} ({style} in torch): {p} ranks{chunks}, {m} microbatches",
        words,
        f"bubble {100 * timeline.bubble_ratio:.1f} % of every rank's step, on the average{by_law}",
        f"microbatches {of}kept for backward, by rank: {each}",
        "predicted: equal stages, transfer and overhead take no time",
    ]


def _law(chunks: int) -> str:
    return "(p−1)/(m+p−1)" if chunks == 1 else "(p−1)/(v·m+p−1)"


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
expert_tables = pages(
    EXPERTS,
    Table(
        "Experts of every rank",
        OF_RANK,
        lambda rows: [(row, rank) for row, figures in _of_rows(rows) for rank in figures.ranks],
        about=("Per step, all layers together. Forward: what the rank's experts computed."),
    ),
)
