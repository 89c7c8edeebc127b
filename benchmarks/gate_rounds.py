"""The gate on two stored runs: false alarms and power by their number of rounds, on real rounds.

One long run of a suite has many rounds. Consecutive ones stand for two runs, one after the other:
the first R for the baseline, the next R for the new run, from every round on. Nothing changed
between them, so a regression is a false alarm; then the steps of one row of the new run are made
5 % longer, and the gate has to find that. The verdicts are those of the whole gate, with its own
settings. Such pairs overlap, and are of one machine and one job: how jobs and hosts differ is not
in them.

``python -m benchmarks.gate_rounds`` measures for 20 minutes on two quiet cores, prints, and with
``--write docs/gate.md`` puts the table into the documentation. ``--read RUN`` measures nothing.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.gate_power import write_into
from scalebench.gate.gate import compare
from scalebench.gate.result import WORSE, RowVerdict
from scalebench.gate.results import Results
from scalebench.gate.summary_file import read_summary
from scalebench.records.baseline import baseline_of
from scalebench.records.summary import Row, RowKey, StepSamples, Summary
from scalebench.stats import estimate_over_launches

MARKS = "<!-- generated: rounds begin -->", "<!-- generated: rounds end -->"
SLOWER = 1.05
NUMBERS = (3, 5, 8, 12, 16)
"""Rounds of a run."""


def measure(out: Path, budget: str) -> None:
    """Measure one long run."""
    command = (sys.executable, "-m", "scalebench", "run", "ddp", "--gpus", "1,2")
    more = ("--precision", "0.01%", "--budget", budget, "--no-report", "--out", str(out))
    subprocess.run([*command, *more], check=True)


def rounds_of(summary: Summary) -> list[int]:
    """Return the numbers of the rounds in which every row has clean steps."""
    found = [{s.repeat for s in row.samples if s.step_s} for row in summary.rows]
    return sorted(set.intersection(*found))


def with_rounds(summary: Summary, rounds: Sequence[int], name: str) -> Summary:
    """Return a run that has these rounds and no others."""
    kept = [_with_rounds(row, rounds) for row in summary.rows]
    return summary.model_copy(update={"run_id": name, "rows": [_with_ratio(r, kept) for r in kept]})


def _with_rounds(row: Row, rounds: Sequence[int]) -> Row:
    samples = [s for s in row.samples if s.repeat in rounds]
    return row.model_copy(
        update={
            "samples": samples,
            "step_s": estimate_over_launches([median(s.pace_s) for s in samples]),
        }
    )


def _with_ratio(row: Row, rows: Sequence[Row]) -> Row:
    base = baseline_of(row, rows)
    if base is None or row.efficiency is None:
        return row
    theirs = {s.repeat: median(s.pace_s) for s in base.samples}
    work = row.global_batch / base.global_batch / row.world_size
    ratios = [work * theirs[s.repeat] / median(s.pace_s) for s in row.samples]
    return row.model_copy(update={"efficiency": estimate_over_launches(ratios)})


def slowed(summary: Summary, key: RowKey) -> Summary:
    """Return the run with the steps of one row 5 % longer."""
    rows = [
        row.model_copy(update={"samples": [_slowed(s) for s in row.samples]})
        if (row.suite, row.case, row.world_size) == key
        else row
        for row in summary.rows
    ]
    rounds = rounds_of(summary)
    return with_rounds(summary.model_copy(update={"rows": rows}), rounds, summary.run_id)


def _slowed(samples: StepSamples) -> StepSamples:
    longer = {
        name: [SLOWER * one for one in getattr(samples, name)] for name in ("step_s", "pace_s")
    }
    return samples.model_copy(update=longer)


def verdicts(base: Summary, new: Summary) -> list[RowVerdict]:
    """Return the gate's verdicts on step times and efficiencies."""
    result = compare(Results("base", (base,)), Results("new", (new,)))
    return [row for row in result.rows if row.metric in ("step_s", "efficiency")]


def is_found(found: Sequence[RowVerdict], key: RowKey) -> bool:
    """Tell whether a row is called slower, or probably so."""
    return any(row.verdict in WORSE for row in found if row.place == key)


@dataclass(frozen=True)
class Rates:
    """What came of runs of so many rounds.

    Attributes:
        minutes: What such a run takes, with its start and its checks.
        num_pairs: Of consecutive runs.
        false_alarms: Share of pairs with a row that regressed though nothing changed.
        found: Share of rows made 5 % slower that are called so.
        step: Median of the smallest change of a step that is found 95 times in 100; a ratio.
        efficiency: The same of an efficiency.
    """

    num_rounds: int
    minutes: float
    num_pairs: int
    false_alarms: float
    found: float
    step: float
    efficiency: float


Judge = Callable[[Summary, Summary], Sequence[RowVerdict]]


def rates(
    pairs: Sequence[tuple[Summary, Summary]], judge: Judge, num_rounds: int, minutes: float
) -> Rates:
    """Ask the gate of pairs of runs between which nothing changed.

    Args:
        pairs: At least one.
        judge: Gives the verdicts.
        num_rounds: Of each run.
        minutes: What each takes.
    """
    rows = pairs[0][1].rows
    keys = [(r.suite, r.case, r.world_size) for r in rows if r.strategy != "plain"]
    alarms, found, detected = [], [], {"step_s": list[float](), "efficiency": list[float]()}
    for base, new in pairs:
        same = judge(base, new)
        alarms.append(any(row.decides and row.verdict in WORSE for row in same))
        for row in same:
            if row.min_detectable is not None:
                detected[row.metric].append(row.min_detectable)
        found += [is_found(judge(base, slowed(new, key)), key) for key in keys]
    return Rates(
        num_rounds=num_rounds,
        minutes=minutes,
        num_pairs=len(pairs),
        false_alarms=float(np.mean(alarms)),
        found=float(np.mean(found)),
        step=float(np.median(detected["step_s"])),
        efficiency=float(np.median(detected["efficiency"])),
    )


def consecutive(summary: Summary, num_rounds: int) -> list[tuple[Summary, Summary]]:
    """Return all pairs of runs of so many rounds that a long run has, one after the other."""
    rounds = rounds_of(summary)
    return [
        (
            with_rounds(summary, rounds[start : start + num_rounds], "base"),
            with_rounds(summary, rounds[start + num_rounds : start + 2 * num_rounds], "new"),
        )
        for start in range(len(rounds) - 2 * num_rounds + 1)
    ]


def minutes_of(budget_s: float, rounds: int, num_rounds: int) -> float:
    """Return what a run of so many rounds takes, in proportion to the long one."""
    return budget_s / 60 * num_rounds / rounds


def text_of(found: Sequence[Rates], measured: str, pairs: str = "pairs of runs") -> str:
    """Return the generated part of the documentation.

    Args:
        found: A row each.
        measured: The line above.
        pairs: What the pairs are called.
    """
    lines = [
        measured,
        "",
        f"| rounds a side | minutes a side | {pairs} | with a false alarm, % | 5 % found, % | "
        "step: detects from, % | efficiency: detects from, % |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        cells = [
            str(one.num_rounds),
            f"{one.minutes:.1f}",
            str(one.num_pairs),
            *(f"{100 * share:.0f}" for share in (one.false_alarms, one.found)),
            *(f"{100 * share:.1f}" for share in (one.step, one.efficiency)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure or read, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", type=Path, help="the folder of a long run; nothing is measured")
    parser.add_argument("--budget", default="20m", help="of the long run")
    parser.add_argument("--write", type=Path, help="document with the marks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = options.read or Path(folder) / "run"
        if options.read is None:
            measure(out, options.budget)
        summary = read_summary(out / "summary.json")
    if summary.precision is None:
        raise SystemExit(f"{out} was not measured with --precision and --budget")
    num, budget_s = len(rounds_of(summary)), summary.precision.budget_s
    found = [
        rates(pairs, verdicts, each, minutes_of(budget_s, num, each))
        for each in NUMBERS
        if (pairs := consecutive(summary, each))
    ]
    text = text_of(found, f"Suite `ddp` at N=1 and 2 on two cores, {num} rounds of one run:")
    print(text)
    if options.write:
        write_into(options.write, text, MARKS)


if __name__ == "__main__":
    main()
