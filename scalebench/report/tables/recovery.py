"""Checkpoints: what each way to save costs training, and how long it takes to load again."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.rows.race import (
    ElasticStretchFigures,
    FailureFigures,
    RecoveryFigures,
    RestoreFigures,
    SaveFigures,
)
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import (
    FOLDED,
    Column,
    Table,
    pages,
    placed,
    value,
    value_of_each,
    without,
)
from scalebench.report.words import wording
from scalebench.report.words.wording import seconds
from scalebench.spec.recovery import BADPUT


def recovering(rows: Sequence[Row]) -> list[tuple[Row, RecoveryFigures]]:
    """Return the rows that were saved and restored, with what came of it."""
    return [(row, row.recovery) for row in rows if row.recovery is not None]


def headline(rows: Sequence[Row]) -> str | None:
    """Say which way to save is the cheapest at most ranks, and what was restored.

    None: nothing was saved.
    """
    found = [(row, figures) for row, figures in recovering(rows) if figures.saves]
    if not found:
        return None
    most = max(row.world_size for row, _ in found)
    said = [_cheapest(row, figures) for row, figures in found if row.world_size == most]
    return " ".join([*said, restored(rows), *failed(rows)])


def without_costs(rows: Sequence[Row]) -> str | None:
    """Say what was restored, and how long a kill takes, where costs stand next to it.

    None: nothing was saved.
    """
    if not any(figures.saves for _, figures in recovering(rows)):
        return None
    return " ".join([restored(rows), *failed(rows)])


def failed(rows: Sequence[Row]) -> list[str]:
    """Say how long the job needs after a kill, for who starts it again; at most ranks."""
    found = [(row, one) for row, figures in recovering(rows) for one in figures.failures]
    most = max((row.world_size for row, _ in found), default=0)
    kills = [(row, one) for row, one in found if row.world_size == most and one.kind == "kill"]
    said = []
    for case in dict.fromkeys(row.case for row, _ in kills):
        own = [(row, one) for row, one in kills if row.case == case]
        times = [
            f"{seconds(one.restart_s)} under {wording.plain(one.restarted_by, 32)}"
            for _, one in own
        ]
        said.append(
            f"After a kill, {wording.plain(case, 64)} on {wording.ranks(own[0][0])} trains again "
            f"in {wording.joined(times)}."
        )
    return said


def over_the_seam(rows: Sequence[Row]) -> list[str]:
    """Say how far the loss of jobs with fewer ranks for a time is from that without a stop."""
    return [
        f"{wording.plain(row.case, 64)} on {wording.ranks(row)}: no step's loss differs by more "
        f"than {figures.elastic.loss_deviation:.1e} (relative) from that of a run without a stop."
        for row, figures in recovering(rows)
        if figures.elastic is not None and figures.elastic.loss_deviation is not None
    ]


def _cheapest(row: Row, figures: RecoveryFigures) -> str:
    best = figures.cheapest
    assert best is not None, "asked of a row that was saved"
    name = f"{wording.plain(row.case, 64)} on {wording.ranks(row)}"
    others = [
        one
        for one in figures.saves
        if one is not best and not wording.surely_above(one.cost_s, best.cost_s)
    ]
    doubt = f", {wording.joined([one.method for one in others])} may be as cheap" if others else ""
    return (
        f"{name}: saving {best.method} costs training {seconds(best.cost_s)} a checkpoint{doubt}."
    )


def restored(rows: Sequence[Row]) -> str:
    """Say how many restores brought back every bit; those that did not have failed."""
    found = [one for _, figures in recovering(rows) for one in figures.restores]
    if not found:
        return "Nothing was restored."
    sizes = sum(
        one.saved_world_size != row.world_size
        for row, figures in recovering(rows)
        for one in figures.restores
    )
    other = f", {sizes} of them with another number of ranks" if sizes else ""
    apart = sum(one.continues_equal is False for one in found)
    after = (
        f" After {apart} of them, further steps differ in some bits from those without a stop."
        if apart
        else ""
    )
    return f"All {len(found)} restores brought back every bit{other}.{after}"


Saved = tuple[Row, SaveFigures]
Loaded = tuple[Row, RestoreFigures]
Failed = tuple[Row, FailureFigures]


def _goes_on(one: RestoreFigures) -> str:
    if one.continues_equal is None:
        return wording.DASH
    return "equal" if one.continues_equal else "differs"


SAVE_COLUMNS: tuple[Column[Saved], ...] = placed(
    Column("method", lambda one: wording.plain(one.method, 32), numeric=False),
    Column("blocks", lambda one: seconds(one.stall_s)),
    Column("on disk", lambda one: seconds(one.durable_s)),
    value("slower", lambda one: one.slower_s, seconds),
    Column("cost", lambda one: seconds(one.cost_s)),
    Column("size", lambda one: units.bytes_(one.bytes)),
    Column("rate", lambda one: f"{units.bytes_(one.bandwidth_byte_per_s.value)}/s"),
    value("memory\non top", lambda one: one.extra_host_bytes, units.bytes_),
)
RESTORE_COLUMNS: tuple[Column[Loaded], ...] = placed(
    Column("method", lambda one: wording.plain(one.method, 32), numeric=False),
    Column("saved\nat N", lambda one: str(one.saved_world_size)),
    Column("load", lambda one: units.seconds(one.load_s)),
    Column("first step", lambda one: units.seconds(one.first_step_s)),
    Column("tensors\nequal", lambda one: str(one.num_tensors)),
    Column("goes on", _goes_on, numeric=False),
)


def mean_seconds(estimate: Estimate) -> str:
    """Write the mean of a duration."""
    return units.seconds(estimate.value)


FAILURE: tuple[Column[FailureFigures], ...] = (
    Column("failure", lambda one: wording.plain(one.kind, 32), numeric=False),
    Column("restarted by", lambda one: wording.plain(one.restarted_by, 32), numeric=False),
)
FAILURE_COLUMNS: tuple[Column[Failed], ...] = placed(
    *FAILURE,
    *value_of_each(
        {
            "notice": "noticed",
            "stop": "stopped",
            "start": "started",
            "rendezvous": "connected",
            "build": "built",
            "load": "loaded",
            "first_step": "first\nstep",
            "catch_up": "caught\nup",
        },
        lambda one, phase: one.phases_s.get(phase),
        mean_seconds,
    ),
    Column("total", lambda one: seconds(one.total_s)),
    Column("lost\nsteps", lambda one: f"{one.lost_steps:.3g}"),
)


@dataclass(frozen=True)
class Stretch:
    """A stretch of a job, and what came before it.

    Attributes:
        begins_s: From the failure, or from the last step before, to its first step; None: it is
            the first stretch.
    """

    row: Row
    part: ElasticStretchFigures
    begins_s: float | None

    @property
    def batch(self) -> str:
        """Samples of a rank, and in how many parts it trains them."""
        parts = self.part.accumulate
        each = self.part.rank_batch // parts
        return str(each) if parts == 1 else f"{parts} × {each}"


STEPS: Column[Stretch] = Column(
    "steps",
    lambda of: f"{of.part.first_step} to {of.part.first_step + of.part.num_steps - 1}",
    numeric=False,
)
LOSS: Column[Stretch] = value(
    "loss", lambda of: of.part.loss[-1] if of.part.loss else None, "{:.4f}".format
)
ELASTIC_COLUMNS: tuple[Column[Stretch], ...] = (
    Column("case", lambda of: wording.plain(of.row.case, 64), numeric=False),
    Column("began\nwith N", lambda of: str(of.row.world_size)),
    Column("N", lambda of: str(of.part.world_size)),
    Column("batch\nper rank", lambda of: of.batch),
    value("begins\nafter", lambda of: of.begins_s, units.seconds),
    value("step", lambda of: of.part.step_s, units.seconds),
    Column("samples/s", lambda of: _throughput(of.part)),
    STEPS,
    LOSS,
)


def _throughput(part: ElasticStretchFigures) -> str:
    if part.throughput_over_losses is not None:
        estimate = part.throughput_over_losses
        return wording.count(estimate)
    return wording.DASH if part.throughput is None else units.count(part.throughput)


LOST_COLUMNS: tuple[Column[Failed], ...] = placed(
    *FAILURE,
    *value_of_each(
        {name: name.replace("_", "\n") for name in BADPUT},
        lambda one, name: one.badput_s.get(name),
        mean_seconds,
    ),
    Column("total", lambda one: seconds(one.total_s)),
)
IN_MEMORY = dict.fromkeys(("tmpfs", "ramfs"), " (memory: gone when the machine stops)")
"""What is added to the name of a file system whose ``fsync`` keeps nothing."""


def where(rows: Sequence[Row]) -> str:
    """Say on what kind of file system the checkpoints were, and over how many saves."""
    found = recovering(rows)
    kinds = sorted({figures.file_system for _, figures in found if figures.file_system})
    counts = sorted({save.stall_s.n for _, figures in found for save in figures.saves})
    saves = f"{counts[-1]} saves of each method" if counts else ""
    names = [wording.plain(kind, 32) + IN_MEMORY.get(kind, "") for kind in kinds]
    return ", ".join(
        text for text in (saves, f"on {wording.joined(names)}" if names else "") if text
    )


def saved_rows(rows: Sequence[Row]) -> list[Saved]:
    """Return every way to save of every row."""
    return [(row, one) for row, figures in recovering(rows) for one in figures.saves]


def failed_rows(rows: Sequence[Row]) -> list[Failed]:
    """Return every kind of failure of every row."""
    return [(row, one) for row, figures in recovering(rows) for one in figures.failures]


def elastic_rows(rows: Sequence[Row]) -> list[Stretch]:
    """Return every stretch of every job that went on with fewer ranks."""
    found = []
    for row, figures in recovering(rows):
        if figures.elastic is not None:
            begins = (None, figures.elastic.shrink_s, figures.elastic.grow_s)
            pairs = zip(figures.elastic.stretches, begins, strict=False)
            found += [Stretch(row, part, begins_s) for part, begins_s in pairs]
    return found


SAVES = Table(
    "Checkpoints",
    SAVE_COLUMNS,
    saved_rows,
    remark=where,
    about=where,
    notes=(
        "blocks: no rank trains; on disk: from the start until fsync has returned; slower: how "
        "much longer the steps take until then; cost: what a save costs training, blocked and "
        "slower",
    ),
    narrowing=(*without("memory on top", "rate", "size"), *FOLDED),
)
RESTORES = Table(
    "Restores",
    RESTORE_COLUMNS,
    lambda rows: [(row, one) for row, figures in recovering(rows) for one in figures.restores],
    notes=(
        "in fresh processes; every tensor is equal, bit for bit, to the one that was saved; goes "
        "on: whether later steps are equal, too, to those of a run that never stopped",
    ),
)
FAILURES = Table(
    "Failures",
    FAILURE_COLUMNS,
    failed_rows,
    notes=(
        "from the failure on: noticed by the launcher, all ranks stopped, processes started, "
        "connected, model built, state loaded, first step, lost steps done again; mean over "
        "failures",
    ),
    narrowing=without("lost steps", "first step", "connected", "built", "stopped"),
)
ELASTIC = Table(
    "With fewer ranks",
    ELASTIC_COLUMNS,
    elastic_rows,
    notes=lambda rows: (
        "a rank is lost, the job goes on with fewer on the same global batch, later with all "
        "again; begins after: from the failure, or from the last step before, to the first step; "
        "steps: the numbers of the steps; loss: of the last one",
        *over_the_seam(rows),
    ),
    narrowing=(),
)
LOST = Table(
    "Lost time",
    LOST_COLUMNS,
    lambda rows: [(row, one) for row, one in failed_rows(rows) if one.badput_s],
    notes=(
        "the same failures by the field's names of lost time: infrastructure: noticed and "
        "stopped; initialisation: started, connected, built; restore and data: loaded; lost "
        "progress: steps done again; mean over failures",
    ),
)
tables = pages(SAVES, FAILURES, ELASTIC, LOST, RESTORES)
