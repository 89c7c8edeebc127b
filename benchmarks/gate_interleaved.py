"""The gate on two versions that measure by turns: false alarms and power by the number of rounds.

Both versions are the same code, so a regression is a false alarm. Then the steps of one row of the
new version are made 5 % longer, row after row, and the gate has to find that. Each run of so many
consecutive rounds is judged by the whole gate with its own settings; such stretches overlap.

``python -m benchmarks.gate_interleaved`` measures 34 rounds of suite ``ddp`` on two quiet cores
(14 minutes), prints, and with ``--write benchmarks/evidence.md`` stores the table.
``--slower`` measures a real change instead: the new version's model is busy for 5 % of its time
more. ``--comparisons 100 --rounds 110`` measures one case, and has ``gate --interleave``, with its
own stopping rule and time, judge so many comparisons that begin at different measured rounds.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gate_power import write_into
from scalebench.cli.gate import BUDGET_S, FEWEST_ROUNDS, FIRST_ROUNDS
from scalebench.errors import EnvironmentUnfit
from scalebench.gate.gate import compare
from scalebench.gate.result import WORSE, GateResult, RowVerdict
from scalebench.gate.results import Results
from scalebench.records.baseline import baseline_of, log_efficiencies, series_of, step_of
from scalebench.records.summary import Row, RowKey, StepSamples, Summary
from scalebench.session.interleaved.ab_runs import InterleavedRuns, Version
from scalebench.session.interleaved.until_decided import until_decided
from scalebench.stats import estimate_over_launches

MARKS = "<!-- generated: interleaved begin -->", "<!-- generated: interleaved end -->"
NUMBERS = (5, 8, 10, 12, 14, 17)
"""Rounds of each version."""
SLOWER = 1.05
ARGUMENTS = ("ddp", "--gpus", "1,2", "--no-trace")
ONE_CASE = (*ARGUMENTS, "-k", "ddp and not (bucket or accumulate or static or balanced)")

MODEL = '''"""gpt-tiny, whose forward pass also waits for a time that is given for each sample."""

import time

from scalebench.spec.presets import PRESETS
from scalebench.worker.workloads.gpt import build_gpt

SAMPLE_S = {sample_s}


def model(shard):
    workload = build_gpt(PRESETS["gpt-tiny"], shard)

    def wait(module, given):
        until = time.perf_counter() + SAMPLE_S * given[0].shape[0]
        while time.perf_counter() < until:
            pass

    workload.module.register_forward_pre_hook(wait)
    return workload
'''


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
            "step_s": estimate_over_launches([step_of(s, series_of(row)) for s in samples]),
        }
    )


def _with_ratio(row: Row, rows: Sequence[Row]) -> Row:
    base = baseline_of(row, rows)
    if base is None or row.efficiency is None:
        return row
    ratios = np.exp(log_efficiencies(row, base, series_of(row, base)))
    return row.model_copy(update={"efficiency": estimate_over_launches(ratios.tolist())})


def slowed(summary: Summary, keys: Sequence[RowKey]) -> Summary:
    """Return the run with the steps of these rows 5 % longer."""
    rows = [
        row.model_copy(update={"samples": [_slowed(s) for s in row.samples]})
        if (row.suite, row.case, row.world_size) in keys
        else row
        for row in summary.rows
    ]
    rounds = rounds_of(summary)
    return with_rounds(summary.model_copy(update={"rows": rows}), rounds, summary.run_id)


def _slowed(samples: StepSamples) -> StepSamples:
    """Lengthen every number of a launch that a step time can be taken from."""
    longer: dict[str, Any] = {
        name: [SLOWER * one for one in getattr(samples, name)] for name in ("step_s", "pace_s")
    }
    if samples.mean_s is not None:
        longer["mean_s"] = SLOWER * samples.mean_s
    return samples.model_copy(update=longer)


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
        found += [is_found(judge(base, slowed(new, [key])), key) for key in keys]
    return Rates(
        num_rounds=num_rounds,
        minutes=minutes,
        num_pairs=len(pairs),
        false_alarms=float(np.mean(alarms)),
        found=float(np.mean(found)),
        step=float(np.median(detected["step_s"])),
        efficiency=float(np.median(detected["efficiency"])),
    )


def text_of(found: Sequence[Rates], measured: str) -> str:
    """Return the generated part of the documentation.

    Args:
        found: A row each.
        measured: The line above.
    """
    lines = [
        measured,
        "",
        "| rounds a side | minutes a side | stretches | with a false alarm, % | 5 % found, % | "
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


def measured(folders: Sequence[Path], rounds: int, arguments: Sequence[str]) -> InterleavedRuns:
    """Measure two versions by turns."""
    base, new = (
        Version(name, sys.executable, folder)
        for name, folder in zip(("base", "new"), folders, strict=True)
    )
    out = folders[0] / "runs"
    with InterleavedRuns((base, new), arguments, out, lambda told: print(told, flush=True)) as runs:
        for _ in range(rounds):
            runs.measure(rounds)
        return runs


def verdicts(base: Summary, new: Summary) -> list[RowVerdict]:
    """Return the gate's verdicts on step times and efficiencies of rounds made by turns."""
    result = compare(Results("base", (base,)), Results("new", (new,)), rounds=True)
    return [row for row in result.rows if row.metric in ("step_s", "efficiency")]


def stretches(base: Summary, new: Summary, num_rounds: int) -> list[tuple[Summary, Summary]]:
    """Return every run of so many consecutive rounds of both versions."""
    every = rounds_of(new)
    parts = [every[start : start + num_rounds] for start in range(len(every) - num_rounds + 1)]
    return [(with_rounds(base, part, "base"), with_rounds(new, part, "new")) for part in parts]


def minutes_of(round_s: Sequence[float], num_rounds: int) -> float:
    """Return what so many rounds take each version, with its start and its checks."""
    usual_s = median(round_s[1:])
    return (round_s[0] + (num_rounds - 1) * usual_s) / 2 / 60


class Replayed:
    """Measured rounds of two versions, given out again one after the other from any of them.

    Args:
        versions: Of the baseline and the new one; the same rounds.
        round_s: What each round took, in their order, seconds.
        start: Index of the round to begin with; after the last one comes the first.
    """

    def __init__(
        self, versions: tuple[Summary, Summary], round_s: Sequence[float], start: int
    ) -> None:
        self._versions = versions
        numbers = rounds_of(versions[1])
        self._order = [*numbers[start:], *numbers[:start]]
        self._took = dict(enumerate(round_s))
        self.round_s: list[float] = []

    def measure(self, upto: int, only: Sequence[str] = ()) -> None:
        """Give out one further round, whole: rows that are decided stay as they are."""
        if len(self.round_s) == len(self._order):
            raise EnvironmentUnfit("all measured rounds are used up")
        self.round_s.append(self._took[self._order[len(self.round_s)]])

    def results(self) -> tuple[Results, Results]:
        """Return the rounds so far."""
        kept = self._order[: len(self.round_s)]
        base, new = (with_rounds(one, kept, one.run_id) for one in self._versions)
        return Results("base", (base,)), Results("new", (new,))


def decided(replayed: Replayed) -> tuple[bool, float]:
    """Judge one comparison as ``gate --interleave`` does; return whether it is red, and its s."""

    def judge(base: Results, new: Results, error_budget: float = 1.0) -> GateResult:
        return compare(base, new, rounds=True, error_budget=error_budget)

    result = until_decided(replayed, FIRST_ROUNDS, judge, BUDGET_S, fewest=FEWEST_ROUNDS)
    return result.exit_code == 1, sum(replayed.round_s)


def compare_often(folder: Path, rounds: int, comparisons: int) -> None:
    """Measure one case, and let ``gate --interleave`` decide equal and slower versions."""
    runs = measured((folder, folder), rounds, ONE_CASE)
    (base,), (new,) = (results.summaries for results in runs.results())
    keys = [(r.suite, r.case, r.world_size) for r in new.rows]
    versions = {
        "equal": new,
        "5 % slower at the largest N": slowed(new, keys[-1:]),
        "5 % slower everywhere": slowed(new, keys),
    }
    starts = np.linspace(0, len(rounds_of(new)), comparisons, endpoint=False).astype(int).tolist()
    for planted, other in versions.items():
        found = [decided(Replayed((base, other), runs.round_s, start)) for start in starts]
        minutes = [took_s / 60 for _, took_s in found]
        print(
            f"{planted}: {sum(red for red, _ in found)} of {len(found)} red; "
            f"{median(minutes):.1f} minutes in the median, {max(minutes):.1f} at most"
        )


def compare_equal(folder: Path, rounds: int, write: Path | None) -> None:
    """Measure equal versions, and print what the gate makes of them."""
    runs = measured((folder, folder), rounds, ARGUMENTS)
    (base,), (new,) = (results.summaries for results in runs.results())
    found = [
        rates(pairs, verdicts, each, minutes_of(runs.round_s, each))
        for each in NUMBERS
        if (pairs := stretches(base, new, each))
    ]
    told = "Suite `ddp` at N=1 and 2 on two cores, `--no-trace`"
    text = text_of(found, f"{told}, {rounds} rounds of two equal versions:")
    print(text)
    if write:
        write_into(write, text, MARKS)


def find_slower(folder: Path, rounds: int, sample_s: float) -> None:
    """Measure a version that is slower by ``sample_s`` seconds a sample, and print the verdicts."""
    folders = [folder / name for name in ("before", "after")]
    for each, waits_s in zip(folders, (0.0, sample_s), strict=True):
        each.mkdir()
        (each / "mine.py").write_text(MODEL.format(sample_s=waits_s))
    began = time.monotonic()
    runs = measured(folders, rounds, (*ARGUMENTS, "--workload", "mine:model"))
    minutes = (time.monotonic() - began) / 120
    (base,), (new,) = (results.summaries for results in runs.results())
    print(f"{rounds} rounds, {minutes:.1f} minutes a side")
    for row in verdicts(base, new):
        change = "?" if row.change is None else f"{100 * row.change:+.1f} %"
        print(f"{row.case:18} N={row.world_size} {row.metric:10} {change:>8}  {row.verdict}")


def main() -> None:
    """Measure, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=34)
    parser.add_argument("--slower", action="store_true", help="measure a version that is slower")
    parser.add_argument(
        "--sample-s", type=float, default=1.1e-4, help="by which it is slower, for each sample"
    )
    parser.add_argument("--write", type=Path, help="document with the marks")
    parser.add_argument("--comparisons", type=int, help="of one case, by the gate's own rule")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        if options.slower:
            find_slower(Path(folder), options.rounds, options.sample_s)
        elif options.comparisons:
            compare_often(Path(folder), options.rounds, options.comparisons)
        else:
            compare_equal(Path(folder), options.rounds, options.write)


if __name__ == "__main__":
    main()
