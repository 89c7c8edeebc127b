"""Verdicts of every kind, and calls of the gate whose words differ: name → result."""

from dataclasses import replace
from typing import Any

from scalebench.gate.metrics import GateSettings
from scalebench.gate.result import SAME_RUN, GateResult, Mismatch, RowVerdict
from scalebench.records.summary import Summary
from tests.builders.gated import REGRESSED, collectives, gated, gated_run, with_missing, with_row

UNCHANGED = replace(
    REGRESSED, metric="peak_memory_bytes", unit="bytes", verdict="unchanged", change=0.0,
    low=None, high=None, base=1e9, new=1e9, basis="single", explanation=(),
)  # fmt: skip
INCONCLUSIVE = replace(
    REGRESSED, world_size=2, verdict="inconclusive", change=0.01, low=-0.02, high=0.04,
    further_launches=12, reason="the interval holds the floor", explanation=(),
)  # fmt: skip
NO_WORSE = replace(INCONCLUSIVE, world_size=8, verdict="not worse", further_launches=None)
PROBABLY = replace(REGRESSED, world_size=6, verdict="probably regressed", reason="a few launches")
SHOWN = replace(REGRESSED, metric="loss_last", unit="loss", decides=False, explanation=())
MISSING = replace(
    REGRESSED, case="gone", verdict="missing", new=None, change=None, low=None, high=None,
    failed=True, reason="failed: rank 1: it broke", explanation=(),
)  # fmt: skip
ODD = replace(REGRESSED, verdict="not comparable", case="odd", reason="another link")


def result_of(*rows: RowVerdict, **changes: Any) -> GateResult:
    sides = {"base": "main", "new": "reports/now", "base_run_id": "one", "new_run_id": "two"}
    return GateResult(**sides, rows=tuple(rows), **changes)


def different() -> GateResult:
    """A regression, a missing row, noise that decides nothing, an exact change, a mismatch."""
    base = with_row(gated_run(seed=1), "ddp", 2, communication=[collectives(5)])
    base = with_row(base, "ddp-small", 2, loss_last=5.0)
    new = gated_run({("ddp", 4): 1.05, ("plain", 1): 1.013}, seed=2)
    new = with_row(new, "ddp", 2, communication=[collectives(21)])
    settings = {"bucket_mb": 1.0, "accumulate": 1}
    new = with_row(new, "ddp-small", 2, strategy_settings=settings, loss_last=5.4)
    return gated(base, with_missing(new, "ddp-small", 4, "failed", "rank 1 was killed"))


def after(factor: float, **changes: Any) -> Summary:
    """A run whose DDP on 4 ranks takes so many times as long."""
    run = gated_run({("ddp", 4): factor}, seed=2, cases=("ddp",))
    return with_row(run, "ddp", 4, **changes)


def compared(new: Summary) -> GateResult:
    return gated(BEFORE, new)


BEFORE = gated_run(seed=1, cases=("ddp",))
OTHER_MODEL = after(1.2, num_parameters=7)
for _place in (("ddp", 2), ("plain", 1)):
    OTHER_MODEL = with_row(OTHER_MODEL, *_place, num_parameters=7)
ELSEWHERE = gated_run(cases=("fsdp",))
MIXED = result_of(REGRESSED, UNCHANGED, INCONCLUSIVE, NO_WORSE, SHOWN, MISSING, ODD, PROBABLY)
PASSED = result_of(UNCHANGED, NO_WORSE, SHOWN)
DIFFERENT = different()
ON_LAUNCHES = [row for row in DIFFERENT.rows if row.basis == "launches"]
FAR = replace(ON_LAUNCHES[0], min_detectable=1e169, low=-1.0, high=1e200)
OTHER_WORKLOADS = [Mismatch("workload", "mini", "large", f"ddp, N={n}") for n in (1, 2, 4)]
VERDICTS: dict[str, GateResult] = {
    "every verdict": MIXED,
    "every verdict, regressions pass": replace(MIXED, let_pass=("regressed",)),
    "passed": PASSED,
    "nothing": result_of(),
    "other suites and workloads": result_of(
        mismatches=(Mismatch("suites", "ddp", "fsdp"), *OTHER_WORKLOADS)
    ),
    "two runs": DIFFERENT,
    "one run twice": replace(DIFFERENT, notes=("torch was 1 and is 2", SAME_RUN)),
    "one row": replace(DIFFERENT, rows=tuple(ON_LAUNCHES[:1])),
    "intervals beyond words": replace(DIFFERENT, rows=(FAR,)),
    "exact quantities only": gated(
        gated_run(seed=1),
        gated_run({("ddp", 4): 1.1}, seed=2),
        settings=GateSettings().only_exact(),
    ),
    "pinned and not": gated(gated_run(seed=1), with_row(gated_run(seed=2), "ddp", 2, pinned=False)),
    "faster": compared(after(1 / 1.08)),
    "slower": compared(after(1.21)),
    "as fast, more memory": compared(after(1.0, peak_memory_bytes=176_000_000)),
    "slower, memory not known": compared(after(1.5, peak_memory_bytes=None)),
    "one launch": gated(*(gated_run(num_launches=1, seed=seed) for seed in (1, 2))),
    "another model": compared(OTHER_MODEL),
    "no case in common": gated(
        *(run.model_copy(update={"rows": run.rows[1:]}) for run in (BEFORE, ELSEWHERE))
    ),
}
