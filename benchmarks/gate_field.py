"""The gate on jobs of others: runs of the same code on 8 × H100, drawn into a base and a new side.

Each run is written down as the log that its program prints, and read by ``scalebench import``. Runs
of one code, driver and torch are drawn without replacement, so many a side. Nothing changed
between them: whatever fails a build is a false alarm. Then every step of the new side is made 0.5
or 1 % longer, and the gate has to say so. Then real changes: a baseline and what was compared
with it on the same machine; the interval has to hold the difference of all their runs. At last the
same code on two drivers: not comparable, and where that is allowed, the interval has to hold the
difference of all runs.

``python -m benchmarks.gate_field --data FOLDER`` wants ``speedruns_8xH100.jsonl.gz`` there: one run
a line with ``group``, ``code``, ``driver``, ``torch`` and ``elapsed_ms``, the training time since
the entry before.
"""

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.analysis.imported import imported_summary
from scalebench.analysis.run import StoredRun, load_run
from scalebench.gate.gate import compare
from scalebench.gate.result import WORSE, RowVerdict
from scalebench.gate.results import Results
from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, import_log
from scalebench.records.summary import ImportedLog, ImportedRun
from scalebench.session.imported import store_imported

FEWEST = 5
"""Runs of a group."""
SIDES = (1, 3, 5)
SLOWER = (0.0, 0.005, 0.01)

Groups = Mapping[tuple[str, ...], Sequence[ImportedLog]]


def read_groups(data: Path) -> Groups:
    """Return the runs of each code, driver and torch, as they are imported."""
    found: dict[tuple[str, ...], list[ImportedLog]] = {}
    with tempfile.TemporaryDirectory() as folder, gzip.open(data, "rt") as lines:
        for number, line in enumerate(lines):
            run = json.loads(line)
            path = Path(folder) / f"{number}.log"
            path.write_text("".join(printed(run)))
            key = tuple(str(run[name]) for name in ("group", "code", "driver", "torch"))
            read = import_log(path, Stated(gpus=run["num_gpus"]), list(formats()))
            found.setdefault(key, []).append(read)
    return {key: logs for key, logs in found.items() if len(logs) >= FEWEST}


def printed(run: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines that a run prints: what it ran on, and after each step the time so far."""
    yield f"Running pytorch {run['torch']}\n"
    yield f"| NVIDIA-SMI {run['driver']}   Driver Version: {run['driver']}   CUDA Version: 12.4 |\n"
    yield from (f"|   {n}  NVIDIA {run['gpu']}   On  |\n" for n in range(run["num_gpus"]))
    gaps = run["elapsed_ms"]
    steps = run["step"] or range(run["first_step"], run["first_step"] + len(gaps))
    for step, so_far in zip(steps, accumulate(gaps), strict=True):
        yield f"step:{step}/{len(gaps)} train_time:{so_far}ms step_avg:{so_far / step:.2f}ms\n"


class Sides:
    """Runs of imported jobs, without a folder for each."""

    def __init__(self, folder: Path, log: ImportedLog) -> None:
        store_imported(ImportedRun(case="job", logs=[log]), ["scalebench", "import"], folder)
        self.stored: StoredRun = load_run(folder)

    def results(self, name: str, logs: Sequence[ImportedLog], slower: float = 0.0) -> Results:
        """Return a side of the gate; each step is longer by this part."""
        longer = [
            log.model_copy(update={"step_s": [(1 + slower) * s for s in log.step_s]})
            for log in logs
        ]
        imported = ImportedRun(case="job", logs=longer)
        return Results(name, (imported_summary(self.stored, imported),))


def step_verdict(base: Results, new: Results, allowed: Sequence[str] = ()) -> RowVerdict:
    """Return the gate's verdict on the step."""
    found = compare(base, new, allowed=allowed)
    return next(row for row in found.rows if row.metric == "step_s")


def judged(
    sides: Sides, base: Sequence[ImportedLog], new: Sequence[ImportedLog], num_runs: int,
    slower: float, generator: np.random.Generator, allowed: Sequence[str] = (),
) -> RowVerdict:  # fmt: skip
    """Draw so many runs for each side, from one group without replacement, and hold them."""
    if base is new:
        drawn = generator.permutation(len(base))
        chosen = [base[i] for i in drawn[: 2 * num_runs]]
        some, others = chosen[:num_runs], chosen[num_runs:]
    else:
        some, others = (
            [logs[i] for i in generator.permutation(len(logs))[:num_runs]] for logs in (base, new)
        )
    both = sides.results("base", some), sides.results("new", others, slower)
    return step_verdict(*both, allowed)


def told(num_runs: int, slower: str, found: Sequence[RowVerdict], true: Sequence[float]) -> str:
    """Return a line of the table; ``true``: what the interval of each verdict has to hold."""
    red = np.mean([one.verdict in WORSE for one in found])
    apart = np.mean([one.verdict == "not comparable" for one in found])
    ends = [(o.low, o.high, t) for o, t in zip(found, true, strict=True)]
    known = [(low, high, t) for low, high, t in ends if low is not None and high is not None]
    tail = "– | –"
    if known:
        holds = np.mean([low <= t <= high for low, high, t in known])
        width = np.median([(high - low) / 2 for low, high, _ in known])
        tail = f"{100 * holds:.1f} % | {100 * width:.2f} %"
    shown = f"{100 * red:.1f} % | {100 * apart:.0f} %"
    return f"| {num_runs} | {slower} | {len(found)} | {shown} | {tail} |"


def table(groups: Groups, sides: Sides, draws: int) -> Iterator[str]:
    """Yield the lines of the table."""
    generator = np.random.default_rng(0)
    yield (
        "| runs a side | slower by | comparisons | fail a build | not comparable | interval holds "
        "| half width |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for num_runs in SIDES:
        usable = [logs for logs in groups.values() if len(logs) >= 2 * num_runs] * draws
        for slower in SLOWER:
            found = [judged(sides, g, g, num_runs, slower, generator) for g in usable]
            yield told(num_runs, f"{100 * slower:.1f} %", found, [slower] * len(found))
    for num_runs in SIDES[1:]:
        for what, found_pairs, allowed in (
            ("real", real_pairs(groups), ()),
            ("other driver", of_two_drivers(groups), ()),
            ("other driver, allowed", of_two_drivers(groups), ("driver",)),
        ):
            pairs = [p for p in found_pairs if min(map(len, p)) >= num_runs] * draws
            found = [judged(sides, *pair, num_runs, 0.0, generator, allowed) for pair in pairs]
            true = [mean_s(new) / mean_s(base) - 1 for base, new in pairs]
            yield told(num_runs, what, found, true)


def real_pairs(groups: Groups) -> list[tuple[Sequence[ImportedLog], Sequence[ImportedLog]]]:
    """Return each baseline with what was compared to it, on one driver and torch."""
    found = []
    for (base, _, *there), logs in groups.items():
        folder, _, leaf = base.rpartition("/")
        if "baseline" in leaf.lower():
            found += [
                (logs, others)
                for (new, _, *where), others in groups.items()
                if new.startswith(f"{folder}/") and "baseline" not in new.lower() and where == there
            ]
    return found


def of_two_drivers(groups: Groups) -> list[tuple[Sequence[ImportedLog], Sequence[ImportedLog]]]:
    """Return all runs of the same code on two drivers, each way round."""
    return [
        (logs, others)
        for (_, code, driver, _), logs in groups.items()
        for (_, same, another, _), others in groups.items()
        if code == same and driver != another
    ]


def mean_s(logs: Sequence[ImportedLog]) -> float:
    """Return the mean step of all runs, seconds."""
    return float(np.mean([np.average(log.step_s, weights=log.counts) for log in logs]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=10, help="From each group. [10]")
    given = parser.parse_args()
    groups = read_groups(given.data / "speedruns_8xH100.jsonl.gz")
    runs = sum(map(len, groups.values()))
    print(f"{runs} runs on 8 × H100, {len(groups)} groups of equal code, driver and torch:\n")
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder) / "run", next(iter(groups.values()))[0])
        for line in table(groups, sides, given.draws):
            print(line, flush=True)


if __name__ == "__main__":
    main()
