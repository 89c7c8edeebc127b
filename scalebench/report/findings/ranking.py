"""What is certain of a case however wide its interval is, and which cases may be the best.

Each finding rests on its own test, not on the efficiency: a rank is compared with the others in the
same steps (see `scalebench.analysis.rows.rank_excess`); what the script's code asks for is counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from scalebench import units
from scalebench.analysis.rows.script_checks import gradients_sent, sends_each_pass, synchronising
from scalebench.records.rows.script import Wrapper
from scalebench.records.rows.steps import RankExcess
from scalebench.records.summary import Estimate, Row
from scalebench.report.findings.advice_rules import DDP, LEAST_LOSS, Advice, Loss
from scalebench.report.tables import compression, races
from scalebench.report.words import causes, script_checks, wording
from scalebench.report.words.causes import OWN_PARTS, action, arrivals, lateness
from scalebench.report.words.causes import reasons as reasons_of
from scalebench.report.words.notes import marks

DEFAULT_BUCKET = 25 * 2**20
"""Bytes. Source: the documentation of DistributedDataParallel, ``bucket_cap_mb``."""

LEAST_WAIT = 0.05
"""Of the step: less is the price of any loader."""

AS_LONG = 0.8
"""Of the wait for a batch on several ranks: one rank that waits so long has the same loader."""

OF_SEVERAL_RANKS = ("wait", "exposed_transfer")
"""Parts of the loss budget that one rank alone does not have."""

TIMES_AS_MANY = 2
"""Buckets of the default size make at most one part in so many of the operations."""


def _loss(
    cause: str, sentence: str, seconds: float, advice: Advice, about: str | None = None
) -> Loss:
    return Loss(cause, Estimate(value=seconds, n=1), advice, sentence, about)


def certain(row: Row, of_suite: Sequence[Row] = ()) -> list[Loss]:
    """Return what is certain of a row on several ranks, that which takes most time first.

    Nothing takes more than the step that it is measured in, and what one rank does not pay no more
    than is missing to ideal. ``of_suite`` has the row of one rank.
    """
    if row.status != "ok" or row.world_size == 1 or wording.is_baseline(row) or not row.step_s:
        return []
    found = list(_slow_loader(row, of_suite))
    if found:  # no rank's loader is worse than that of one rank
        computing = [one for one in row.rank_excess or () if one.part == "compute"]
        row = row.model_copy(update={"rank_excess": computing})
    found += [one for read in READERS for one in read(row) if not found or read is not _few_workers]
    return sorted((_at_most(one, row) for one in found), key=lambda one: -one.taken_s.value)


def _at_most(loss: Loss, row: Row) -> Loss:
    most_s = _most_s(row, loss.about in OF_SEVERAL_RANKS)
    return replace(loss, taken_s=Estimate(value=min(loss.taken_s.value, most_s), n=1))


def _most_s(row: Row, lost: bool) -> float:
    """Return the seconds of a step, or of those what is missing to ideal."""
    part = max(0.0, 1 - row.efficiency.value) if lost and row.efficiency else 1.0
    return part * row.step_s.value if row.step_s else 0.0


def _late_ranks(row: Row) -> Iterator[Loss]:
    by_rank: dict[int, list[RankExcess]] = {}
    # Either makes any rank late in a few traced steps.
    disturbed = "foreign load" in marks(row) or (row.budget and causes.drifted(row.budget))
    for one in row.rank_excess or ():
        if one.certain or not disturbed:
            by_rank.setdefault(one.rank, []).append(one)
    for rank, excess in by_rank.items():
        yield _late_rank(row, rank, excess)


def _late_rank(row: Row, rank: int, excess: Sequence[RankExcess]) -> Loss:
    reasons = [one for one in excess if one.part != "lateness"] or list(excess)
    largest = max(reasons, key=lambda one: one.own_s - one.others_s)
    times = {"own": units.seconds(largest.own_s), "others": units.seconds(largest.others_s)}
    part = f"{largest.part}_s"
    does = OWN_PARTS.get(part, LATE).format(**times)
    if part not in OWN_PARTS or not largest.certain:
        part, does = next(iter(reasons_of(row, rank).items()), (part, does))
    late = next((one for one in arrivals(row)[:1] if one.rank == rank), None)
    last = f" ({lateness(late)})" if late else ""
    look = action(rank, part)
    if largest.certain:
        name = f"rank {rank} is the slow one{last}"
        told = f"longer in {largest.num_longer} of {largest.num_blocks} blocks of steps"
    else:
        name = f"rank {rank} is probably the slow one"
        told = f"in all {largest.num_blocks} traced steps, which are too few to be certain"
    advice = Advice(look, f"{does}{last}", f"{look}: {does}")
    sentence = f"{name}: {does} ({told})"
    return _loss(f"rank {rank}", sentence, largest.own_s - largest.others_s, advice, "wait")


LATE = "the others wait {own} a step for it, it waits {others} for them"


def _slow_loader(row: Row, of_suite: Sequence[Row]) -> Iterator[Loss]:
    """Tell of batches that one rank waits for as long: they cost speed, and no efficiency."""
    rows = [one for one in of_suite if one.case == row.case and one.world_size == 1]
    alone = rows[0] if rows else row
    wait_s, alone_s = (one.script.batch_wait_s if one.script else None for one in (row, alone))
    if not wait_s or not alone_s or not row.step_s or not alone.step_s or alone is row:
        return
    slowest = [one.own_s for one in row.rank_excess or () if one.part == "data_stall"]
    most_s = min(max([wait_s, *slowest]), row.step_s.value)
    if most_s < LEAST_WAIT * row.step_s.value or not alone_s > AS_LONG * most_s:
        return
    loader = row.script.loader if row.script else None
    has = f" than num_workers={loader.num_workers}" if loader and loader.num_workers else ""
    takes = f"{units.seconds(most_s)} of the {units.seconds(row.step_s.value)} step"
    one_rank = f"at N=1 {units.seconds(alone_s)} of {units.seconds(alone.step_s.value)}"
    told = f"ranks wait for their batches, {takes}, {one_rank}: that costs speed, not scaling"
    action = f"Give the loader more workers{has}"
    advice = Advice(action, told, f"{action}: data takes {takes}")
    yield _loss("slow loader, at N=1 as well", told, most_s, advice, "data_stall")


def _few_workers(row: Row) -> Iterator[Loss]:
    facts = row.script
    wait_s, loader = (facts.batch_wait_s, facts.loader) if facts else (None, None)
    if wait_s is None or loader is None or loader.num_workers is None or row.step_s is None:
        return
    if wait_s < LEAST_WAIT * row.step_s.value:
        return
    has = f"num_workers={loader.num_workers}"
    takes = f"{units.seconds(wait_s)} of the {units.seconds(row.step_s.value)} step"
    told = f"every rank waits for its batches, {takes}: the loader has {has}"
    action = f"Give the loader more workers than {has}"
    yield _loss(
        "loader with too few workers",
        told,
        wait_s,
        Advice(action, f"every rank waits {takes} for data", f"{action}: data takes {takes}"),
        "data_stall",
    )


def _sent_too_often(row: Row) -> Iterator[Loss]:
    sent = sends_each_pass(row)
    if sent is None:
        return
    passes, num_bytes = sent
    of_ddp = synchronising(row)[0].kind == DDP
    remedy = "model.no_sync()" if of_ddp else "no_sync() or set_requires_gradient_sync(False)"
    exposed_s = _exposed_s(row) * (1 - 1 / passes)
    told = f"each of the {passes} backward passes of a step sends the gradients"
    size = (
        f"{units.bytes_(num_bytes)} a step instead of {units.bytes_(num_bytes / passes)}, which"
        f" costs up to {units.seconds(exposed_s)}"
    )
    action = f"Run all passes but the last under {remedy}"
    yield _loss(
        "accumulation without no_sync",
        f"{told}: {size}",
        exposed_s,
        Advice(action, f"{told}, {size}", f"{action}: {passes} sends a step, 1 would do"),
        "exposed_transfer",
    )


def _small_buckets(row: Row) -> Iterator[Loss]:
    sent, wrapper = gradients_sent(row), _only_ddp(row)
    cap = wrapper.bucket_bytes if wrapper else None
    if not sent or cap is None or cap >= DEFAULT_BUCKET:
        return
    by_default = 1 + ceil(sent[1] / DEFAULT_BUCKET)
    count = round(sent[0])
    if count < TIMES_AS_MANY * by_default or _model_prefers_small(row):
        return
    exposed_s = _exposed_s(row) * (1 - by_default / count)
    if row.step_s is None or exposed_s < LEAST_LOSS * row.step_s.value:
        return
    told = f"DDP sends its gradients of {units.bytes_(sent[1])} in {count} operations a step"
    size = (
        f"bucket_cap_mb={cap / 2**20:g}; the default, 25, makes {by_default} and may save up to"
        f" {units.seconds(exposed_s)}"
    )
    action = "Try bucket_cap_mb=25"
    yield _loss(
        "small buckets",
        f"{told} ({size})",
        exposed_s,
        Advice(
            action, f"{told} ({size})", f"{action}: {count} operations a step, not {by_default}"
        ),
        "exposed_transfer",
    )


def _model_prefers_small(row: Row) -> bool:
    told = row.prediction.what_if if row.prediction else ()
    larger = [one for one in told if one.bucket_mb is not None and one.bucket_mb >= 25]
    return any(one.gain < -abs(row.prediction_error or 0.0) for one in larger)


def _only_ddp(row: Row) -> Wrapper | None:
    found = [one for one in row.wrappers or () if one.kind == DDP]
    return found[0] if len(found) == 1 else None


def _exposed_s(row: Row) -> float:
    """Return the communication that computation does not hide, at most what is lost, seconds."""
    return min(row.exposed_comm_s.value, _most_s(row, True)) if row.exposed_comm_s else 0.0


def _needless_search(row: Row) -> Iterator[Loss]:
    seconds, _ = script_checks.needless_search(row) or (None, None)
    if seconds is None:
        return
    takes = f"takes {units.seconds(seconds)} of a step"
    told = "DDP searches for unused parameters and finds none"
    action = "Leave out find_unused_parameters=True"
    yield _loss(
        "search for unused parameters",
        f"{told}: the search {takes}",
        seconds,
        Advice(action, f"{told}, which {takes}", f"{action}: the search {takes}"),
    )


def _host_waits(row: Row) -> Iterator[Loss]:
    said = script_checks.host_waits(row)
    waits = row.script.host_waits if row.script else None
    if not said or waits is None or waits.seconds_per_step is None:
        return
    takes = f"{units.seconds(waits.seconds_per_step)} of a step"
    first = waits.places[0]
    place = f"{wording.plain(first.file, 40)}:{first.line}"
    action = f"Call {first.call} less often ({place})"
    yield _loss(
        "waits of the host",
        f"{said}: {takes}",
        waits.seconds_per_step,
        Advice(action, f"{said}, {takes}", f"{action}: {waits.per_step:.3g} a step, {takes}"),
    )


READERS: tuple[Callable[[Row], Iterator[Loss]], ...] = (
    _late_ranks,
    _few_workers,
    _sent_too_often,
    _small_buckets,
    _needless_search,
    _host_waits,
)


@dataclass(frozen=True)
class Ranking:
    """The rated cases at the largest N.

    Attributes:
        rows: Their rows, one for each case; at least one.
        comparable: Whether they ran the same workload and batch in the same kind of place.
    """

    rows: tuple[Row, ...]
    comparable: bool

    @property
    def best(self) -> Row:
        """The row of the highest efficiency."""
        return max(self.rows, key=lambda row: row.efficiency.value if row.efficiency else 0.0)

    @property
    def known(self) -> bool:
        """Whether every efficiency has an interval."""
        return all(_ends(row) is not None for row in self.rows)

    @property
    def rivals(self) -> tuple[Row, ...]:
        """The others whose interval reaches that of the best; without intervals: none is known."""
        floor = _ends(self.best)
        if floor is None:
            return ()
        found = [(row, _ends(row)) for row in self.rows if row is not self.best]
        return tuple(row for row, ends in found if ends is not None and ends[1] >= floor[0])


def rank(headlines: Sequence[Row]) -> Ranking | None:
    """Return the ranking of a suite's cases; None: no case was rated on several ranks.

    Only cases of one workload, one batch and one kind of place are compared, and only those
    whose result is not known to be wrong.
    """
    rated = [
        row
        for row in headlines
        if row.efficiency
        and row.world_size > 1
        and not wording.is_baseline(row)
        and not row.deviates
        and not compression.is_bound(row)
    ]
    if not rated:
        return None
    largest = max(row.world_size for row in rated)
    rows = tuple(row for row in rated if row.world_size == largest)
    kinds = {(row.workload, row.global_batch, row.oversubscribed) for row in rows}
    return Ranking(rows, comparable=len(kinds) == 1)


def best_row(headlines: Sequence[Row]) -> Row | None:
    """Return the row of the case that one would train with; None: none was rated.

    In a race that is the first at its target, else the one of the highest efficiency.
    """
    first = races.first_at_target(headlines)
    if first is not None:
        return first[0]
    ranked = rank(headlines)
    return ranked.best if ranked else None


def sentence(ranking: Ranking | None) -> str | None:
    """Say which case scales best, or that none does; None: nothing to compare."""
    if ranking is None or len(ranking.rows) < 2:
        return None
    if not ranking.comparable:
        return NOT_RANKED
    best, rivals = ranking.best, ranking.rivals
    where = f"on {wording.ranks(best)}"
    if not ranking.known:
        return f"Which case scales best {where} is not known: some have no interval."
    name = wording.plain(best.case, 64)
    slower = _slower_than_one_rank(ranking)
    if not rivals:
        return f"{name} scales best {where}: its interval lies above all others.{slower}"
    if len(rivals) == len(ranking.rows) - 1:
        both = f"{name} and {wording.plain(rivals[0].case, 64)}"
        subject = "The cases" if len(ranking.rows) > 2 else both
        return f"{subject} show no significant difference {where}: their intervals overlap.{slower}"
    return (
        f"{name} has the highest efficiency {where}, but not significantly higher than"
        f" {_names(rivals)}: intervals overlap.{slower}"
    )


LEAST_SAVING = 0.05
"""Peaks of memory closer together than this are called alike."""


def least_memory(ranking: Ranking | None) -> str:
    """Say which case needs the least memory, next to the one of the highest efficiency.

    Returns:
        Empty: there are not several cases, a peak was not counted, or none stands out.
    """
    if ranking is None or len(ranking.rows) < 2 or not ranking.comparable:
        return ""
    peaks = {row.case: row.peak_memory_bytes or 0 for row in ranking.rows}
    if not all(peaks.values()):
        return ""
    case, least = min(peaks.items(), key=lambda item: item[1])
    best = ranking.best.case
    other = max(peaks, key=lambda name: peaks[name]) if case == best else best
    saved = 1 - least / peaks[other]
    if saved < LEAST_SAVING:
        return ""
    return (
        f"Least memory: case {wording.plain(case, 64)}, {units.bytes_(least)} a rank,"
        f" {100 * saved:.0f} % less than {wording.plain(other, 64)}."
    )


def _slower_than_one_rank(ranking: Ranking) -> str:
    """Say that the ranks together train no faster than one plain rank; empty: some case does."""
    reached = [row.speedup for row in ranking.rows]
    if any(one is None or (one.high or one.value) >= 1 for one in reached):
        return ""
    none = "It trains no" if len(reached) == 1 else "None trains"
    return f" {none} faster than plain training on one rank."


NOT_RANKED = "The cases run different workloads or batches: they are not ranked."

MOST_NAMED = 2
"""Rivals that a headline names; of more it says how many."""


def headline(ranking: Ranking | None) -> str:
    """Say in one line which efficiency is the highest, with its interval, and how certain that is.

    The number of ranks stands in the title above it.
    """
    if ranking is None:
        return "No case has an efficiency on several ranks."
    if not ranking.comparable:
        return NOT_RANKED
    best, others = ranking.best, len(ranking.rows) - 1
    assert best.efficiency is not None
    span = wording.interval(best.efficiency, 100)
    reached = f"{wording.point(best.efficiency, 100)} %" + (f" ({span})" if span else "")
    name = wording.plain(best.case, 64)
    slower = _slower_than_one_rank(ranking)
    if not others:
        said = f"Efficiency of {name}: {reached}."
        return (
            f"{said}{slower}"
            if span
            else f"{said} {_without_interval(best)[0].upper()}{_without_interval(best)[1:]}{slower}"
        )
    said = f"Highest efficiency: case {name}, {reached}."
    if not ranking.known:
        return f"{said} Not certain: {_without_interval(best)}{slower}"
    if not ranking.rivals:
        return f"{said} Certain: its interval lies above all others.{slower}"
    many = len(ranking.rivals) > MOST_NAMED
    rivals = f"{len(ranking.rivals)} of {others} others" if many else _names(ranking.rivals)
    return f"{said} Not certain: {rivals} may be as good.{slower}"


def _without_interval(best: Row) -> str:
    one = best.efficiency is not None and best.efficiency.n == 1
    return "one launch gives no interval." if one else "not every case has an interval."


def _names(rows: Sequence[Row]) -> str:
    return wording.joined([wording.plain(row.case, 64) for row in rows])


def _ends(row: Row) -> tuple[float, float] | None:
    return row.efficiency.ends if row.efficiency else None
