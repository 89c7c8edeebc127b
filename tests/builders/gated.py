"""Runs for the gate whose noise and whose changes are known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalebench.gate.gate import compare
from scalebench.gate.result import GateResult, Mismatch, RowVerdict
from scalebench.gate.results import Results
from scalebench.records.rows.budget import PARTS, Budget
from scalebench.records.rows.steps import OperationFigures
from scalebench.records.summary import Row, StepSamples, Summary
from scalebench.stats import Estimate, estimate_over_launches
from tests.builders.summaries import (
    HOSTILE,
    estimate,
    make_missing,
    make_plain,
    make_row,
    make_summary,
)

PLAIN_S = 0.040
STEPS = 60
SLOWEST_OVER_PACE = 1.03


def launches(step_s: float, levels: Sequence[float], generator: np.random.Generator) -> list:
    """One launch for each of ``levels``, relative to ``step_s``; steps differ by 0.2 %.

    The slowest rank's steps are longer than the job's, and not what is judged.
    """
    found = []
    for repeat, level in enumerate(levels):
        pace_s = step_s * level * np.exp(generator.normal(0, 0.002, STEPS))
        slowest_s = pace_s * SLOWEST_OVER_PACE
        found.append(StepSamples(repeat=repeat, step_s=slowest_s.tolist(), pace_s=pace_s.tolist()))
    return found


def medians(samples: Sequence[StepSamples]) -> dict[int, float]:
    return {s.repeat: float(np.median(s.pace_s or s.step_s)) for s in samples}


def gated_row(
    case: str,
    world_size: int,
    samples: Sequence[StepSamples],
    plain: Sequence[StepSamples],
    **changes: Any,
) -> Row:
    """A row whose estimates are those of its samples."""
    own, base = medians(samples), medians(plain)
    ratios = [base[r] / own[r] / world_size for r in own if r in base]
    fields: dict[str, Any] = {
        "samples": list(samples),
        "step_s": estimate_over_launches(list(own.values())),
        "efficiency": estimate_over_launches(ratios),
        "wire_bytes": 1000,
        "payload_bytes": 1000,
        "peak_memory_bytes": 160_000_000,
    }
    return make_row(case, world_size).model_copy(update={**fields, **changes})


def gated_run(
    slower: Mapping[tuple[str, int], float] | None = None,
    *,
    num_launches: int = 5,
    launch_sd: float = 0.001,
    seed: int = 0,
    cases: Sequence[str] = ("ddp", "ddp-small"),
    **changes: Any,
) -> Summary:
    """A run of the plain model and of every case at N = 2 and 4, at 80 % efficiency.

    Args:
        slower: (case, N) → by how much the step is longer than usual, as a factor.
        num_launches: Of every row.
        launch_sd: By how much launches differ, as a ratio.
        seed: Of the noise.
        cases: Beside ``plain``.
        changes: Of the summary.
    """
    generator = np.random.default_rng(seed)

    def levels() -> list[float]:
        return [float(x) for x in np.exp(generator.normal(0, launch_sd, num_launches))]

    slower = slower or {}
    plain = launches(PLAIN_S * slower.get(("plain", 1), 1.0), levels(), generator)
    of_plain = {
        "samples": plain,
        "step_s": estimate_over_launches(list(medians(plain).values())),
        "efficiency": Estimate(value=1.0, low=1.0, high=1.0, n=num_launches),
    }
    rows = [make_plain().model_copy(update=of_plain)]
    for case in cases:
        for n in (2, 4):
            step_s = PLAIN_S / n / 0.8 * slower.get((case, n), 1.0)
            rows.append(gated_row(case, n, launches(step_s, levels(), generator), plain))
    return make_summary(rows, **{"run_id": f"run-{seed}", **changes})


def with_row(summary: Summary, case: str, world_size: int, **changes: Any) -> Summary:
    """The same run with fields of one row replaced."""
    rows = [
        row.model_copy(update=changes) if (row.case, row.world_size) == (case, world_size) else row
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": rows})


def of_version_0_1(summary: Summary) -> Summary:
    """The same launches as version 0.1 summarised them: by the slowest rank of each step."""
    told = [
        [sample.model_copy(update={"pace_s": []}) for sample in row.samples] for row in summary.rows
    ]
    steps = [estimate_over_launches(list(medians(samples).values())) for samples in told]
    rows = [
        row.model_copy(update={"samples": samples, "step_s": step_s})
        for row, samples, step_s in zip(summary.rows, told, steps, strict=True)
    ]
    return summary.model_copy(update={"rows": rows})


def with_missing(summary: Summary, case: str, world_size: int, *why: str) -> Summary:
    """The same run with a row that was not measured: its status, and the reason."""
    place, missing = (case, world_size), make_missing(case, world_size, *why)
    rows = [missing if (row.case, row.world_size) == place else row for row in summary.rows]
    return summary.model_copy(update={"rows": rows})


def without_row(summary: Summary, case: str, world_size: int) -> Summary:
    rows = [r for r in summary.rows if (r.case, r.world_size) != (case, world_size)]
    return summary.model_copy(update={"rows": rows})


def gated(base: Summary, new: Summary, **options: Any) -> GateResult:
    return compare(Results("base", (base,)), Results("new", (new,)), **options)


def verdict_of(
    result: GateResult, metric: str, case: str = "ddp", world_size: int = 2
) -> RowVerdict:
    """The one verdict on a metric of a row."""
    (found,) = [
        r for r in result.rows if (r.metric, r.case, r.world_size) == (metric, case, world_size)
    ]
    return found


def collectives(count: float, kind: str = "all_reduce") -> OperationFigures:
    """An entry of ``communication``."""
    times = {"total_s": 0.001, "exposed_s": 0.001, "hidden_s": 0.0}
    return OperationFigures(
        kind=kind, ordinal=None, phase="backward", count=count, num_bytes=1000.0, **times
    )


def budget_points(efficiency: float, rank: int = 0, **points: float) -> Budget:
    """A loss budget of a step of 10 ms that closes: the rest is idle."""
    rest = 1 - efficiency - sum(points.values())
    told = {**dict.fromkeys((part.key for part in PARTS), 0.0), "other_idle": rest, **points}
    seconds = {f"{name}_s": value * 0.01 for name, value in told.items()}
    ideal_s = efficiency * 0.01
    return Budget(ideal_s=ideal_s, measured_s=0.01, rank=rank, closes=True, points=told, **seconds)


def explained():
    """Efficiency fell 6 points, transfer explains 5 of them; 5 all-reduces became 21."""
    base = with_row(
        gated_run(seed=1), "ddp", 4, communication=[collectives(5)],
        efficiency=estimate(0.80, 0.001, 5), budget=budget_points(0.80, exposed_transfer=0.10),
    )  # fmt: skip
    small = {"bucket_mb": 1.0, "accumulate": 1}
    new = with_row(
        gated_run({("ddp", 4): 1.08}, seed=2), "ddp", 4, communication=[collectives(21)],
        efficiency=estimate(0.74, 0.001, 5), budget=budget_points(0.74, exposed_transfer=0.15),
        strategy_settings=small,
    )  # fmt: skip
    return gated(base, new, allowed=["bucket_mb"])


CHANGE = {"base": 0.100, "new": 0.106, "change": 0.06, "low": 0.052, "high": 0.068, "floor": 0.01}
CHANGE |= {"min_detectable": 0.021, "base_launches": 5, "new_launches": 5}
REGRESSED = RowVerdict(
    *("ddp", "ddp", 4, "step_s", "s", "regressed"),
    **CHANGE,
    basis="launches",
    reason="beyond the floor of 1 %, and the interval excludes less",
    explanation=("exposed communication explains 5 of 6 points", "all_reduce: 5 → 21 per step"),
)


def hostile_verdict():
    """A verdict all of whose texts attack whoever shows it."""
    rows = [
        replace(REGRESSED, suite=text, case=text, metric=text, reason=text, explanation=(text,))
        for text in HOSTILE
    ]
    different = [Mismatch(text, text, text, text) for text in HOSTILE]
    everything = "\n".join(HOSTILE)
    sides = dict.fromkeys(("base", "new", "base_run_id", "new_run_id"), everything)
    return GateResult(**sides, rows=tuple(rows), mismatches=tuple(different), notes=HOSTILE)
