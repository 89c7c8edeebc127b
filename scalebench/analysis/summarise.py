"""Scaling: from the raw launches of a run to throughput, speedup and efficiency.

``S(N) = T_1 / T_N = X_N / X_1`` and ``E(N) = S(N) / N``, with X the samples per second of the
whole job, so that strong and weak scaling are one formula. T_1 is the bare model in one process
(``plain``); against the strategy's own N=1 it is called *wrapped*.

Launches are interleaved over sizes in rounds. Ratios are formed within a round and then
estimated over the rounds: what drifts from round to round cancels. How much launches differ is told
by all rows of a suite: see `round_noise`.

A row is the union of what each subject says of it.
"""

import shlex

from scalebench.analysis.imported import imported_summary
from scalebench.analysis.projection.scores import interval_of_row, score
from scalebench.analysis.race import race_of_row
from scalebench.analysis.rows.against_uncompressed import against_uncompressed
from scalebench.analysis.rows.attribution import attribution_of_row, pop_of_row
from scalebench.analysis.rows.axes import wires_of_row
from scalebench.analysis.rows.compression import compression_of_row
from scalebench.analysis.rows.headline import headline_of_row, reproducible_of_row, setting_of_row
from scalebench.analysis.rows.launches import AmongRows, Context, Subject, union_of, with_fields
from scalebench.analysis.rows.prediction import prediction_of_row
from scalebench.analysis.rows.rank_excess import rank_excess_of_row
from scalebench.analysis.rows.recovery import recovery_of_row
from scalebench.analysis.rows.resources import energy_of_row, memory_of_row, mfu_of_row
from scalebench.analysis.rows.script import script_of_row, step_kinds_of_row
from scalebench.analysis.rows.script_checks import exchanges_of_row
from scalebench.analysis.rows.strategies import (
    against_fastest,
    balance_of_row,
    equal_loss_of_row,
    experts_of_row,
    framework_of_row,
    lockstep_of_row,
)
from scalebench.analysis.run import StoredRun
from scalebench.analysis.validity import validity_of_row
from scalebench.records.run import from_notices
from scalebench.records.summary import Row, Summary, TimedCollectives, set_aside

SUBJECTS: tuple[Subject, ...] = (
    headline_of_row,
    validity_of_row,
    setting_of_row,
    attribution_of_row,
    pop_of_row,
    memory_of_row,
    energy_of_row,
    experts_of_row,
    balance_of_row,
    mfu_of_row,
    prediction_of_row,
    compression_of_row,
    script_of_row,
    step_kinds_of_row,
    reproducible_of_row,
    rank_excess_of_row,
    recovery_of_row,
    framework_of_row,
    wires_of_row,
)
"""What is said of a row by itself, in the order of its stamps and reasons."""

AMONG_ROWS: tuple[AmongRows, ...] = (
    against_uncompressed,
    interval_of_row,
    race_of_row,
    lockstep_of_row,
    equal_loss_of_row,
    against_fastest,
    exchanges_of_row,
)
"""What is said of a row next to the others, when all have been worked out."""


def summarise(run: StoredRun) -> Summary:
    """Work out the summary of a run, however far it came."""
    if run.imported is not None:
        return imported_summary(run, run.imported)
    context = Context.of(run)
    rows = [
        Row(**union_of(subject(launches, context) for subject in SUBJECTS))
        for launches in context.table.values()
    ]
    for among in AMONG_ROWS:
        rows = [with_fields(row, among(row, rows, context)) for row in rows]
    return Summary(
        run_id=run.info.run_id,
        created=run.info.created,
        status=run.info.status,
        scalebench_version=run.info.version,
        reproduce=shlex.join(run.info.command),
        environment=run.info.environment,
        notices=[*run.info.notices, *set_aside(run.damaged)],
        damaged=run.damaged,
        largest_batches=run.info.largest_batches or from_notices(run.info.notices, run.info.plan),
        certificate=run.info.certificate,
        precision=run.info.precision,
        model=score(rows, run.info.profile_differs),
        gate={suite.name: suite.gate for suite in run.info.spec.suites if suite.gate},
        collectives=_collectives(run),
        link=run.link,
        rows=rows,
    )


def _collectives(run: StoredRun) -> TimedCollectives | None:
    names = [suite.name for suite in run.info.spec.suites if suite.collectives is not None]
    if not names:
        return None
    if run.link is None:
        return TimedCollectives(
            suites=names, num_points=0, num_wrong=0, fits=[], failure=run.link_unavailable
        )
    wrong = run.link.num_wrong
    return TimedCollectives(
        suites=names,
        num_points=len(run.link.points),
        num_wrong=wrong,
        fits=[row for fit in run.link.fits for row in fit.rows()],
        failure=f"{wrong} elements of results are wrong" if wrong else None,
    )
