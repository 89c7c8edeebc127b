"""Two runs, row by row and metric by metric, made into one `GateResult`."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from scalebench.gate.change import pooled_runs
from scalebench.gate.comparison import (
    TIME_TO_TARGET,
    Comparison,
    decided_by_race,
    exact_verdict,
    explain_baseline,
    explain_efficiency,
    explain_exact,
    explain_settings,
    explain_step,
    single_verdict,
)
from scalebench.gate.family import judge
from scalebench.gate.metrics import GateSettings, Metric, count_metric, named_metric
from scalebench.gate.observation import (
    Observation,
    collective_counts,
    from_estimate,
    have_peaks,
    observe,
)
from scalebench.gate.result import GateResult, Mismatch, RowVerdict
from scalebench.gate.results import (
    ENVIRONMENT,
    LINK_PROFILE,
    MATTERS_TO_EXACT,
    PINNED,
    RESTS_ON_LINKS,
    Results,
    check_names,
    decisive_rows,
    further_runs,
    mismatches_of,
    notes_on,
    row_mismatches,
    suite_mismatches,
    usable,
)
from scalebench.records.rows.race import times_of
from scalebench.records.summary import Estimate, Row, RowKey, baseline_of, key_of, series_of


def compare(
    base: Results,
    new: Results,
    settings: GateSettings | None = None,
    allowed: Collection[str] = (),
    rounds: bool = False,
    error_budget: float = 1.0,
) -> GateResult:
    """Hold a run against its baseline.

    ``allowed``: names of properties that may differ. ``rounds``: the launches of both took turns on
    one machine. ``error_budget``: of the errors that the promise leaves room for, what this
    analysis may make.

    Raises:
        UsageError: One of ``allowed`` is no property.
    """
    check_names(allowed, [*base.rows, *new.rows])
    base, left_out = usable(base, new)
    draft = _Draft(base, new, allowed, rounds, notes=[*notes_on(base, new), *left_out])
    draft.compare_all(settings or GateSettings())
    draft.judge_pending(error_budget)
    return GateResult(
        base=base.name,
        new=new.name,
        base_run_id=", ".join(s.run_id for s in base.summaries),
        new_run_id=", ".join(s.run_id for s in new.summaries),
        rows=tuple(draft.rows),
        mismatches=tuple(draft.mismatches),
        notes=tuple(draft.notes),
        interleaved=rounds,
    )


@dataclass
class _Draft:
    """A result in the making; ``pending``: what is judged with its family, by place in ``rows``."""

    base: Results
    new: Results
    allowed: Collection[str]
    rounds: bool
    notes: list[str]
    rows: list[RowVerdict] = field(default_factory=list)
    pending: list[tuple[int, Comparison]] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)

    def compare_all(self, settings: GateSettings) -> None:
        """Compare every row of both."""
        base, new, allowed = self.base, self.new, self.allowed
        environments = {
            id(ours): mismatches_of(ours, new.summaries, allowed) for ours in base.summaries
        }
        self.mismatches = list(dict.fromkeys(m for found in environments.values() for m in found))
        self.mismatches += suite_mismatches(base, new, allowed)
        ours, theirs, decisive = base.by_key(), new.by_key(), decisive_rows(base, new)
        without_baseline = []
        for key in _keys(base, new):
            if key not in ours:
                if _failed(theirs[key][0]):
                    self.rows.append(_missing(theirs[key][0], theirs[key][0]))
                else:
                    without_baseline.append(theirs[key][0])
                continue
            (row, summary), told, asked = ours[key], None, settings
            if key in theirs:
                told, of_new = theirs[key]
                asked = settings.of_suite(of_new.gate.get(row.suite, {}), f"{new.name}: gate")
            if key not in decisive:
                asked = asked.only_exact()
            self._compare_rows(row, told, environments[id(summary)], asked)
        if without_baseline and self.rows:
            self.notes.append(_not_in_baseline(without_baseline))

    def _compare_rows(
        self, base: Row, new: Row | None, environment: Sequence[Mismatch], settings: GateSettings
    ) -> None:
        if base.status == "skipped" and (new is None or new.status == "skipped"):
            return
        if new is None or new.status != "ok":
            self.rows.append(_missing(base, new))
            return
        if base.status == "skipped":
            self.notes.append(_not_in_baseline([new]))
            return
        own = row_mismatches(base, new, self.allowed)
        self.mismatches += [m for m in own if m not in self.mismatches]
        for one in _comparisons(base, new, (self.base, self.new), settings):
            against = [m for m in (*environment, *own) if _matters(m, one.metric)]
            told = tuple(_explanation(one, own, (self.base, self.new)))
            verdict = _verdict(one, [m for m in against if not m.allowed])
            if verdict is None:
                self.pending.append((len(self.rows), replace(one, rounds=self.rounds)))
                self.rows.append(replace(one.verdict("inconclusive"), explanation=told))
            else:
                self.rows.append(one.explained(verdict, told))

    def judge_pending(self, error_budget: float) -> None:
        """Judge what rests on launches, all rows together."""
        judged = judge([comparison.pair() for _, comparison in self.pending], error_budget)
        for (place, comparison), judgement in zip(self.pending, judged, strict=True):
            told = self.rows[place].explanation
            self.rows[place] = comparison.explained(comparison.concluded(judgement), told)


def _keys(base: Results, new: Results) -> list[RowKey]:
    suites = {row.suite for row in new.rows}
    kept = [row for row in base.rows if row.suite in suites]
    return list(dict.fromkeys(key_of(row) for row in [*new.rows, *kept]))


def _failed(row: Row) -> bool:
    return row.status in ("failed", "oom")


def _not_in_baseline(rows: Sequence[Row]) -> str:
    named = ", ".join(f"{row.case} N={row.world_size}" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return (
        f"not in the baseline, so not judged: {named}{more}; `scalebench baseline accept` adds them"
    )


def _missing(base: Row, new: Row | None, reason: str = "") -> RowVerdict:
    failed = new is not None and _failed(new)
    told = "not in the new run" if new is None else f"{new.status}: {new.reason or 'no reason'}"
    value = base.step_s.value if base.step_s is not None and base is not new else None
    return RowVerdict(
        *(base.suite, base.case, base.world_size, "step_s", "s", "missing"),
        base=value,
        failed=failed,
        reason=reason or told,
    )


def _matters(mismatch: Mismatch, metric: Metric) -> bool:
    if mismatch.name == LINK_PROFILE:
        return metric.name in RESTS_ON_LINKS
    is_of_machine = mismatch.name in (*ENVIRONMENT, PINNED)
    return metric.kind != "exact" or not is_of_machine or mismatch.name in MATTERS_TO_EXACT


def _comparisons(
    base: Row, new: Row, results: tuple[Results, Results], settings: GateSettings
) -> Iterator[Comparison]:
    others = (results[0].rows, results[1].rows)
    further = list(further_runs(base, results[0]))
    rows = (base, new, *(row for row, _ in further))
    series, by_launch = series_of(*rows), have_peaks(*rows)
    for metric in settings.metrics:
        if metric.falls_with_steps and not _trained_alike(base, new):
            continue
        was = observe(base, metric, others[0], series, by_launch)
        is_ = observe(new, metric, others[1], series, by_launch)
        again = [observe(row, metric, run, series, by_launch) for row, run in further]
        raced = metric.name == TIME_TO_TARGET and base.race is not None and new.race is not None
        if was is not None or is_ is not None or raced:
            yield _over_runs(Comparison(metric, base, new, was, is_), again)
    times = [{time.name: time.estimate for time in times_of(row.recovery)} for row in rows]
    for name in dict.fromkeys([*times[0], *times[1]]):
        chosen = next((m for m in settings.recovery if name.endswith(m.name)), None)
        if chosen is not None:
            was, is_, *again = (_observed(found.get(name)) for found in times)
            yield _over_runs(Comparison(named_metric(name, chosen), base, new, was, is_), again)
    counts = (collective_counts(base), collective_counts(new))
    told = base.communication is not None, new.communication is not None
    for kind in sorted({*counts[0], *counts[1]}):
        observed = [
            Observation(count.get(kind, 0.0)) if side else None
            for count, side in zip(counts, told, strict=True)
        ]
        metric = count_metric(kind, settings.collectives)
        yield Comparison(metric, base, new, observed[0], observed[1])


def _observed(estimate: Estimate | None) -> Observation | None:
    if estimate is None:
        return None
    return Observation(estimate.value, from_estimate(estimate, logarithmic=True))


def _trained_alike(base: Row, new: Row) -> bool:
    """Tell whether the last losses of two rows are those after as many steps.

    Launches fill a window of time, after a warm-up of some length: as many clean steps are not as
    many steps. Older summaries know no other number.
    """
    if base.loss_last_steps is None and new.loss_last_steps is None:
        return base.num_clean_steps == new.num_clean_steps
    return base.loss_last_steps == new.loss_last_steps


def _over_runs(comparison: Comparison, again: Sequence[Observation | None]) -> Comparison:
    if comparison.base is None or comparison.base.launches is None:
        return comparison
    found = [one.launches for one in again if one is not None and one.launches is not None]
    if not found:
        return comparison
    runs = (comparison.base.launches, *found)
    together = pooled_runs(runs)
    logarithmic = comparison.metric.kind == "positive"
    value = math.exp(together.center) if logarithmic else together.center
    return replace(comparison, base=Observation(value, together), base_runs=runs)


def _verdict(comparison: Comparison, against: Sequence[Mismatch]) -> RowVerdict | None:
    """Return the verdict on one metric; None: it rests on launches, judged with its family."""
    raced = decided_by_race(comparison)
    if against:
        what = "; ".join(dict.fromkeys(m.text for m in against[:3]))
        return comparison.verdict("not comparable", reason=f"different: {what}")
    if raced is not None:
        return raced
    if comparison.base is None:
        reason = "the baseline has no number" + _why(comparison.base_row, comparison.metric)
        return comparison.verdict("not comparable", reason=reason)
    if comparison.new is None:
        reason = "the new run has no number" + _why(comparison.new_row, comparison.metric)
        return comparison.verdict("missing", reason=reason)
    if comparison.base_row.status != "ok":
        reason = f"the baseline's row is {comparison.base_row.status}"
        return comparison.verdict("not comparable", reason=reason)
    if comparison.metric.kind == "exact":
        return exact_verdict(comparison)
    return None if comparison.launches is not None else single_verdict(comparison)


def _why(row: Row, metric: Metric) -> str:
    reason = row.unavailable.get(metric.name)
    return f": {reason}" if reason else ""


def _explanation(
    comparison: Comparison, own: Sequence[Mismatch], results: tuple[Results, Results]
) -> list[str]:
    """Return the lines for a row, whatever the verdict; `Comparison.explained` may drop them."""
    base, new = comparison.base_row, comparison.new_row
    if comparison.metric.name == "efficiency":
        lines = explain_efficiency(base, new)
        lines += explain_baseline(_plain_step_s(base, results[0]), _plain_step_s(new, results[1]))
    elif comparison.metric.name == "step_s":
        lines = explain_step(base, new)
    else:
        return []
    return [*lines, *explain_exact(base, new), *explain_settings(own)]


def _plain_step_s(row: Row, results: Results) -> float | None:
    baseline = baseline_of(row, results.rows)
    return baseline.step_s.value if baseline is not None and baseline.step_s else None
