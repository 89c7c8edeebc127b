"""A search as tables for the terminal."""

from collections.abc import Sequence

from scalebench import units
from scalebench.grouping import by_key
from scalebench.report.tables.layout import Column, Screen, value, without
from scalebench.report.tables.predictions import percent
from scalebench.report.words import wording
from scalebench.search.devices.sources import AgainstReference, Reference
from scalebench.search.result import Experiment, MeasuredChoice, RankedChoice, SearchResult

NOTHING = wording.DASH
EXPOSED = ("tensor", "context", "expert", "pipeline", "shard", "data")


def exposed_words(one: RankedChoice) -> str:
    """Return communication that nothing hides, by axis, and the bubble, as parts of the step."""
    return ", ".join(f"{axis} {100 * share:.2g} %" for axis, share in _exposed(one)) or "none"


def exposed_in_brief(one: RankedChoice) -> str:
    """Return their sum and the largest of them: ``"34 %, bubble 14 %"``."""
    found = _exposed(one)
    if not found:
        return "none"
    total = sum(share for _, share in found)
    axis, largest = max(found, key=lambda part: part[1])
    if len(found) == 1:
        return f"{axis} {100 * largest:.2g} %"
    return f"{100 * total:.2g} %, {axis} {100 * largest:.2g} %"


def _exposed(one: RankedChoice) -> list[tuple[str, float]]:
    parts = [(axis, one.parts_s.get(f"{axis}_s", 0.0) / one.step_s) for axis in EXPOSED]
    parts.append(("bubble", one.parts_s.get("bubble_s", 0.0) / one.step_s))
    return [(axis, share) for axis, share in parts if share >= 0.0005]


COLUMNS: tuple[Column[tuple[int, RankedChoice]], ...] = (
    Column("#", lambda r: str(r[0]), numeric=False),
    Column("mesh", lambda r: r[1].mesh_words, numeric=False, fold=19),
    Column("how", lambda r: r[1].how_words, numeric=False, fold=26),
    value("step", lambda r: r[1].step_s, units.seconds),
    Column("90 %\ninterval", lambda r: wording.span_s(r[1].low_s, r[1].high_s), fold=12),
    value("memory\na rank", lambda r: r[1].memory_bytes, units.bytes_),
    value("MFU", lambda r: r[1].mfu, lambda m: f"{100 * m:.3g} %"),
    Column("exposed\ncommunication", lambda r: exposed_words(r[1]), numeric=False),
    Column("runs\nhere", lambda r: "yes" if r[1].strategy else "no"),
)
NARROWING = without("runs here", "MFU", "90 % interval", "exposed: all, most")


IN_BRIEF = Column[tuple[int, RankedChoice]](
    "exposed:\nall, most", lambda r: exposed_in_brief(r[1]), numeric=False, fold=15
)
"""What stands for the parts of the exposed communication where there is no room for them."""


def columns_of(result: SearchResult) -> list[Column[tuple[int, RankedChoice]]]:
    """Return the columns that have something to say."""
    has_mfu = any(one.mfu is not None for one in result.best)
    return [column for column in COLUMNS if has_mfu or column.name != "MFU"]


def render_search(result: SearchResult, screen: Screen) -> str:
    """Return the tables as text; all in the first is predicted."""
    rows = list(enumerate(result.best, 1))
    columns = [
        IN_BRIEF if column.name.startswith("exposed") else column for column in columns_of(result)
    ]
    screen.title(
        "search",
        f"{wording.plain(result.workload, 60)}, {result.world_size} ranks, global batch "
        f"{result.global_batch}; the best of each mesh and ZeRO stage",
    )
    screen.table(columns, rows, NARROWING)
    screen.line(result.why)
    screen.lines(notes(result), "dim")
    if result.measured is not None:
        screen.line()
        screen.title("measured", wording.plain(result.measured.run, 80))
        screen.table(MEASURED, result.measured.rows)
        screen.lines(experiment_words(result.measured))
    return screen.text()


def notes(result: SearchResult) -> list[str]:
    """Return what a reader has to know of a search, one sentence each."""
    limit = (
        f"{result.num_fitting:,} fit {units.bytes_(result.memory_limit_bytes)} a rank"
        if result.memory_limit_bytes is not None
        else "no memory limit was given"
    )
    told = []
    if result.first_to_try:
        simplest = result.best[result.first_to_try]
        told.append(
            f"try {simplest.mesh_words} first: its pipeline is shorter, and the model cannot tell "
            "its step from the fastest one"
        )
    if result.probability is not None and result.error is not None:
        told.append(f"{_chance(result)}typical error {percent(result.error)} ({result.error_told})")
    meshes = "1 mesh" if result.num_meshes == 1 else f"{result.num_meshes:,} meshes"
    excluded = ", the others are excluded by a bound"
    told.append(
        f"{result.num_candidates:,} configurations of {meshes}; {limit}; "
        f"{result.num_evaluated:,} evaluated"
        + (excluded if result.num_evaluated < result.num_fitting else "")
    )
    told += [
        f"{count:,} {'mesh is' if count == 1 else 'meshes are'} impossible: {why}"
        for why, count in result.refused_meshes.items()
    ]
    placed = result.best[0].placement if result.best else ()
    if len(placed) > 1:
        told.append(f"placement of the first, from the inside of a node out: {', '.join(placed)}")
    told.append(f"memory margin {percent(result.margin)}: {result.margin_told}")
    told.append(f"predicted, not measured: {'; '.join(result.assumptions)}")
    why_not = [one for one in result.best if one.cannot_run]
    if why_not:
        reasons = "; ".join(dict.fromkeys(one.cannot_run or "" for one in why_not))
        told.append(
            f"no strategy of scalebench trains {len(why_not)} of these: {reasons}"
            + _fastest_trained(result)
        )
    return told


def _chance(result: SearchResult) -> str:
    """Say how probable the first is the fastest; nothing where there is no other."""
    if len(result.best) < 2 or result.probability is None:
        return ""
    shown = f"{100 * result.probability:.2g}" if result.probability < 0.995 else "over 99"
    return f"probability that the first mesh is the fastest: {shown} %; "


def _fastest_trained(result: SearchResult) -> str:
    if not result.trained:
        return ""
    first = result.trained[0]
    return f"; the fastest that one trains: {first.case}, {units.seconds(first.step_s)}"


def _off(row: MeasuredChoice) -> str:
    if row.measured_s is None:
        return NOTHING
    return f"{100 * (row.predicted_s / row.measured_s - 1):+.1f} %".replace("-", wording.MINUS)


MEASURED: tuple[Column[MeasuredChoice], ...] = (
    Column("case", lambda r: r.case, numeric=False, fold=34),
    Column("picked", lambda r: r.picked, numeric=False),
    value("predicted", lambda r: r.predicted_s, units.seconds),
    value("measured", lambda r: r.measured_s, units.seconds),
    Column("error", _off),
    value("predicted\nmemory", lambda r: r.predicted_bytes, units.bytes_),
    value("measured\nmemory", lambda r: r.measured_bytes, units.bytes_),
)


NONE_REJECTED = (
    "no configuration was trained that the memory model rejects: none was rejected, or none that a "
    "strategy of scalebench trains (a smaller --memory-limit rejects more)"
)


def memory_words(row: MeasuredChoice) -> str | None:
    """Say what a measured peak says of the memory model; None: what was expected, or unknown."""
    if row.fits is None:
        return None
    if row.picked == "rejected":
        if row.fits:
            return f"{row.case} was rejected and fits: the memory margin was too careful"
        return f"{row.case} was rejected and does not fit: the memory model was right"
    if row.fits:
        return None
    return f"{row.case} was expected to fit and does not: the memory margin was too small"


def experiment_words(found: Experiment) -> list[str]:
    """Return what an experiment says of the search, one sentence each."""
    told = []
    if found.regret is not None:
        told.append(f"regret {found.regret:.3f}: {_regret_words(found)}")
    if found.rank_correlation is not None:
        told.append(f"rank correlation {found.rank_correlation:.2f}")
    if found.error is not None:
        told.append(f"typical error {percent(found.error)}")
    told += [f"{row.case}: {wording.plain(row.reason)}" for row in found.rows if row.reason]
    told += [said for row in found.rows if (said := memory_words(row)) is not None]
    if all(row.picked != "rejected" for row in found.rows):
        told.append(NONE_REJECTED)
    return told


def _regret_words(found: Experiment) -> str:
    first, *_ = found.rows
    allowed = [row for row in found.rows if row.measured_s and row.picked != "rejected"]
    fastest = min(allowed, key=lambda row: row.measured_s or 0.0)
    if fastest.case == first.case:
        return f"the first choice, {first.case}, is the fastest of what was trained"
    return (
        f"{first.case}, the first choice, takes so many times the step of {fastest.case}, the "
        "fastest of what was trained"
    )


def render_against(found: Sequence[AgainstReference], screen: Screen) -> str:
    """Return how rows stand against published or own results; what is said of several, once."""
    places = by_key(
        (_held_words(one), f"{wording.plain(one.case, 64)} on {one.world_size}") for one in found
    )
    for words, named in places.items():
        screen.line(f"{wording.joined(named)}: {words}")
    return screen.text()


def _held_words(one: AgainstReference) -> str:
    here, there = one.here, one.reference
    if here is None or there is None:
        return f"nothing is compared: {wording.plain(one.reason or '', 200)}"
    how = [f"under {there.strategy}"] if there.strategy else []
    how += [f"in {there.precision}"] if there.precision else []
    verb = "" if one.part is None else "reach "
    told = wording.plain(" ".join([_job(there, verb), *how, f"({there.source})"]), 300)
    if one.part is None:
        return f"nothing is compared. Nearest: {told}. Here: {_job(here)}."
    said = [f"{units.rough_percent(one.part.value)} of what {told}."]
    said += [f"Fastest of {one.num_alike} that are alike."] if one.num_alike > 1 else []
    said += [f"Here: {_job(here)}."] if _job(here) != _job(there) else []
    return " ".join(said)


def _job(one: Reference, verb: str = "") -> str:
    size = units.count(one.parameters)
    tokens = f"{one.sequence:,} tokens a sample"
    return f"{one.gpus} × {one.gpu.upper()} {verb}with a {size} model of {tokens}"
