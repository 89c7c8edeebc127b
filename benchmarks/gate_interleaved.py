"""The gate on two versions that measure by turns: false alarms, power and minutes.

Both versions are the same code, so a regression is a false alarm. Then the steps of the new version
are made 5 % longer, at the largest N or everywhere, and the gate has to find that. ``gate
--interleave``, with its own stopping rule and time, judges many comparisons that begin at different
measured rounds of one case.

``python -m benchmarks.gate_interleaved --comparisons 100 --rounds 110`` measures and prints;
``--keep FOLDER`` stores the measured rounds, and ``--from FOLDER`` judges stored ones again.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scalebench.cli.gate import BUDGET_S, FEWEST_ROUNDS, FIRST_ROUNDS
from scalebench.errors import EnvironmentUnfit
from scalebench.gate.baselines import read_summary
from scalebench.gate.gate import compare
from scalebench.gate.result import GateResult
from scalebench.gate.results import Results
from scalebench.records.files import write_model
from scalebench.records.summary import RowKey, StepSamples, Summary
from scalebench.session.interleaved.ab_runs import InterleavedRuns, Version, until_decided

SLOWER = 1.05
ONE_CASE = (
    *("ddp", "--gpus", "1,2", "--no-trace"),
    *("-k", "ddp and not (bucket or accumulate or static or balanced)"),
)

Rounds = tuple[Summary, Summary, list[float]]
"""Of the baseline, of the new version; what each round took, seconds."""


def rounds_of(summary: Summary) -> list[int]:
    """Return the numbers of the rounds in which every row has clean steps."""
    found = [{s.repeat for s in row.samples if s.step_s} for row in summary.rows]
    return sorted(set.intersection(*found))


def with_rounds(summary: Summary, rounds: Sequence[int]) -> Summary:
    """Return a run that has the launches of these rounds and no others."""
    rows = [
        row.model_copy(update={"samples": [s for s in row.samples if s.repeat in rounds]})
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": rows})


def slowed(summary: Summary, keys: Sequence[RowKey]) -> Summary:
    """Return the run with the steps of these rows 5 % longer."""
    rows = [
        row.model_copy(update={"samples": [_slowed(s) for s in row.samples]})
        if (row.suite, row.case, row.world_size) in keys
        else row
        for row in summary.rows
    ]
    return summary.model_copy(update={"rows": rows})


def _slowed(samples: StepSamples) -> StepSamples:
    """Lengthen every number of a launch that a step time can be taken from."""
    longer: dict[str, Any] = {
        name: [SLOWER * one for one in getattr(samples, name)] for name in ("step_s", "pace_s")
    }
    if samples.mean_s is not None:
        longer["mean_s"] = SLOWER * samples.mean_s
    return samples.model_copy(update=longer)


def measured(rounds: int) -> Rounds:
    """Measure one case of two equal versions by turns."""
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        here = Path(folder)
        versions = (Version("base", sys.executable, here), Version("new", sys.executable, here))
        with InterleavedRuns(
            versions, ONE_CASE, here / "runs", lambda told: print(told, flush=True)
        ) as runs:
            for _ in range(rounds):
                runs.measure(rounds)
        (base,), (new,) = (results.summaries for results in runs.results())
    return base, new, runs.round_s


def keep(folder: Path, rounds: Rounds) -> None:
    """Store measured rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, summary in zip(("base", "new"), rounds, strict=False):
        write_model(folder / f"{name}.json", summary)
    (folder / "round_s.json").write_text(json.dumps(rounds[2]))


def kept(folder: Path) -> Rounds:
    """Return stored rounds."""
    base, new = (read_summary(folder / f"{name}.json") for name in ("base", "new"))
    return base, new, json.loads((folder / "round_s.json").read_text())


class Replayed:
    """Measured rounds of two versions, given out again one after the other from any of them.

    Args:
        rounds: The same ones of both.
        start: Index of the round to begin with; after the last one comes the first.
    """

    def __init__(self, rounds: Rounds, start: int) -> None:
        *self._versions, took = rounds
        numbers = rounds_of(self._versions[1])
        self._order = [*numbers[start:], *numbers[:start]]
        self._took = dict(enumerate(took))
        self.round_s: list[float] = []

    def measure(self, upto: int, only: Sequence[str] = ()) -> None:
        """Give out one further round, whole: rows that are decided stay as they are."""
        if len(self.round_s) == len(self._order):
            raise EnvironmentUnfit("all measured rounds are used up")
        self.round_s.append(self._took[self._order[len(self.round_s)]])

    def results(self) -> tuple[Results, Results]:
        """Return the rounds so far."""
        so_far = self._order[: len(self.round_s)]
        base, new = (with_rounds(one, so_far) for one in self._versions)
        return Results("base", (base,)), Results("new", (new,))


def decided(replayed: Any) -> tuple[bool, float]:
    """Judge one comparison as ``gate --interleave`` does; return whether it is red, and its s."""

    def judge(base: Results, new: Results, error_budget: float = 1.0) -> GateResult:
        return compare(base, new, rounds=True, error_budget=error_budget)

    result = until_decided(replayed, FIRST_ROUNDS, judge, BUDGET_S, fewest=FEWEST_ROUNDS)
    return result.exit_code == 1, sum(replayed.round_s)


def compared(rounds: Rounds, comparisons: int) -> dict[str, list[tuple[bool, float]]]:
    """Let ``gate --interleave`` decide equal and slower versions, from many rounds on."""
    base, new, round_s = rounds
    keys = [(r.suite, r.case, r.world_size) for r in new.rows]
    versions = {
        "equal": new,
        "5 % slower at the largest N": slowed(new, keys[-1:]),
        "5 % slower everywhere": slowed(new, keys),
    }
    starts = np.linspace(0, len(rounds_of(new)), comparisons, endpoint=False).astype(int).tolist()
    return {
        planted: [decided(Replayed((base, other, round_s), start)) for start in starts]
        for planted, other in versions.items()
    }


def main() -> None:
    """Measure or read, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=110)
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="folder for the measured rounds")
    parser.add_argument("--from", dest="stored", type=Path, help="folder with stored rounds")
    options = parser.parse_args()
    rounds = kept(options.stored) if options.stored else measured(options.rounds)
    if options.keep:
        keep(options.keep, rounds)
    for planted, found in compared(rounds, options.comparisons).items():
        minutes = [took_s / 60 for _, took_s in found]
        print(
            f"{planted}: {sum(red for red, _ in found)} of {len(found)} red; "
            f"{median(minutes):.1f} minutes in the median, {max(minutes):.1f} at most"
        )


if __name__ == "__main__":
    main()
