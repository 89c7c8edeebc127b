"""The columns of the headline table, once for terminal, page and Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalebench import units
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables import layout
from scalebench.report.tables.layout import CASE, RANKS
from scalebench.report.words import wording
from scalebench.report.words.notes import letters, marks

NOTHING = wording.DASH

Text = Callable[[Row], str]


@dataclass(frozen=True)
class Column(layout.Column[Row]):
    """One column.

    Attributes:
        key: Its class on the page.
        detail: What a second, smaller line of the page adds, usually the interval.
        beside_detail: The text where the detail is shown; None: the same as without.
    """

    key: str = ""
    detail: Text = lambda row: ""
    beside_detail: Text | None = None


def _estimate(read: Callable[[Row], Estimate | None], write: Callable[[Estimate], str]) -> Text:
    def text(row: Row) -> str:
        estimate = read(row)
        return NOTHING if estimate is None else write(estimate)

    return text


def _interval(read: Callable[[Row], Estimate | None], scale: float = 1.0, unit: str = "") -> Text:
    def text(row: Row) -> str:
        estimate = read(row)
        span = wording.interval(estimate, scale) if estimate else None
        return f"{span}{unit}" if span else ""

    return text


def _step(row: Row) -> str:
    if row.status != "ok":
        return row.status
    if row.step_s is None:
        return NOTHING
    return wording.seconds(row.step_s)


def _step_detail(row: Row) -> str:
    if row.step_s is None or row.step_s.half_width is None:
        return ""
    unit = units.seconds(row.step_s.value).rpartition(" ")[2]
    scale = units.PER_SECOND[unit]
    return f"{wording.interval(row.step_s, scale)} {unit}"


def _memory(row: Row) -> str:
    return NOTHING if row.peak_memory_bytes is None else units.bytes_(row.peak_memory_bytes)


def _loss(row: Row) -> str:
    found = _loss_alone(row)
    return found if found == NOTHING else f"{found} @ {row.loss_equal_steps}"


def _loss_alone(row: Row) -> str:
    if row.loss_first is None or row.loss_equal is None or row.loss_equal_steps is None:
        return NOTHING
    return f"{row.loss_first:.4g}→{row.loss_equal:.4g}"


def _loss_detail(row: Row) -> str:
    steps = row.loss_equal_steps
    return "" if steps is None else f"after {steps} step{'' if steps == 1 else 's'}"


def check(row: Row) -> str:
    """Say how the row's gradients and losses compare with the reference."""
    found = row.correctness
    if found is None or row.status != "ok":
        return NOTHING
    if found.status != "deviates":
        return {"verified": "✓ verified"}.get(found.status, found.status)
    deviations = [d for d in (found.gradient_deviation, found.loss_deviation) if d is not None]
    return f"FAILED {max(deviations):.1e}" if deviations else "FAILED"


def _check_detail(row: Row) -> str:
    found = row.correctness
    if found is None or row.status != "ok" or found.gradient_deviation is None:
        return ""
    limit = f", limit {found.tolerance:.0e}" if found.tolerance is not None else ""
    return f"error {found.gradient_deviation:.1e}{limit}"


def _throughput(row: Row) -> str:
    if row.throughput is None:
        return NOTHING
    unit = "" if wording.counts_samples(row) else " steps"
    return f"{wording.count(row.throughput)}{unit}"


_STATUS_STYLE = {"failed": "bold red", "oom": "bold red", "skipped": "yellow"}

COLUMNS = (
    Column(**vars(CASE), key="case"),
    Column(**vars(RANKS), key="n"),
    Column("batch\nall/rank", lambda r: wording.batches(r, "{}/{}"), key="batch"),
    Column(
        "step",
        _step,
        style=lambda r: _STATUS_STYLE.get(r.status, ""),
        key="step",
        detail=_step_detail,
    ),
    Column("samples/s", _throughput, key="throughput"),
    Column("tokens/s", _estimate(lambda r: r.tokens_per_s, wording.count), key="tokens"),
    Column(
        "speedup",
        _estimate(lambda r: r.speedup, lambda e: f"{wording.point(e)}{wording.TIMES}"),
        key="speedup",
        detail=_interval(lambda r: r.speedup),
    ),
    Column(
        "efficiency",
        _estimate(lambda r: r.efficiency, wording.percent),
        style=lambda r: "dim" if r.oversubscribed else "bold",
        key="efficiency",
        detail=_interval(lambda r: r.efficiency, 100),
        beside_detail=_estimate(lambda r: r.efficiency, lambda e: f"{wording.point(e, 100)} %"),
    ),
    Column(
        "MFU",
        _estimate(lambda r: r.mfu, lambda e: f"{wording.point(e, 100)} %"),
        key="mfu",
        detail=_interval(lambda r: r.mfu, 100),
    ),
    Column(
        "J/sample",
        _estimate(lambda r: r.energy_j_per_sample, wording.point),
        key="energy",
        detail=_interval(lambda r: r.energy_j_per_sample),
    ),
    Column("peak\nmem", _memory, key="memory"),
    Column("loss", _loss, key="loss", detail=_loss_detail, beside_detail=_loss_alone),
    Column(
        "grad\ncheck",
        check,
        numeric=False,
        style=lambda r: "bold red" if r.deviates else "",
        key="check",
        detail=_check_detail,
    ),
    Column(
        "marks", lambda r: ", ".join(marks(r)), numeric=False, style=lambda r: "yellow", key="marks"
    ),
)


def lettered(columns: layout.Columns) -> layout.Columns:
    """Shorten the marks to letters: a way to narrow the table."""
    return tuple(
        replace(c, text=lambda r: letters(marks(r))) if c.name == "marks" else c for c in columns
    )


def present(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns in which at least one of the rows has something to say."""
    return tuple(
        column for column in COLUMNS if any(column.text(row) not in (NOTHING, "") for row in rows)
    )
