"""False alarms and power of the gate, beside other rules, on simulated runs; writes the tables.

``python -m benchmarks.gate_power`` runs everything and prints; ``--write FILE`` puts the tables
into the documentation, where nothing of them is written by hand.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from benchmarks.gate_noise import LAUNCH_SD, LEVELS, Noise
from benchmarks.gate_rules import OTHERS, gate_alarms, gate_pairs, medians_of

EFFECTS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.10)
GATE = "scalebench gate"
SEED = 1729
MARKS = "<!-- generated: gate begin -->", "<!-- generated: gate end -->"
MOST_FALSE, LEAST_FOUND = 0.01, 0.95


@dataclass
class Counts:
    """What one rule did over many calls with one kind of noise.

    Attributes:
        calls: A/A calls, and calls at each effect.
        alarms: A/A calls with any alarm.
        found: Effect → calls in which the slowed row was found.
    """

    calls: int = 0
    alarms: int = 0
    found: dict[float, int] = field(default_factory=lambda: dict.fromkeys(EFFECTS[1:], 0))


def simulate(noise: Noise, calls: int, seed: int = SEED, others: bool = True) -> dict[str, Counts]:
    """Count false alarms and finds of every rule; the same steps for all of them.

    Every call has two fresh runs. They are compared as they are (A/A), and with one row of the
    second slowed by each effect.
    """
    generator = np.random.default_rng((seed, list(LEVELS).index(noise.levels), noise.num_rows))
    rules = OTHERS if others else {}
    counts = {name: Counts() for name in (GATE, *rules)}
    slowed = noise.num_rows // 2
    for _ in range(calls):
        base, new = noise.run(generator), noise.run(generator)
        known, fresh = medians_of(base), medians_of(new)
        for effect in EFFECTS:
            steps, medians = new.copy(), fresh[0].copy()
            steps[slowed] *= 1 + effect
            medians[slowed] += math.log1p(effect)
            pairs = gate_pairs(known, (medians, fresh[1]))
            alarms = {GATE: gate_alarms(pairs, noise.num_rows)[0]}
            alarms |= {name: rule(base, steps) for name, rule in rules.items()}
            for name, rows in alarms.items():
                if effect:
                    counts[name].found[effect] += slowed in rows
                else:
                    counts[name].calls += 1
                    counts[name].alarms += bool(rows)
    return counts


def upper_bound(hits: int, calls: int) -> float:
    """Return the upper 95 % bound of a rate (Clopper & Pearson 1934)."""
    return 1.0 if hits >= calls else float(betaincinv(hits + 1, calls - hits, 0.95))


def rate(hits: int, calls: int) -> str:
    """Write a rate as percent."""
    return f"{100 * hits / calls:.1f}"


def false_alarm_table(results: Sequence[tuple[Noise, dict[str, Counts]]]) -> list[str]:
    """Return the table of false alarms and of 5 % found, a line for each noise and rule."""
    lines = [
        "| noise | rows | rule | A/A calls | with a false alarm, % | at most, % | 5 % found, % |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for noise, counts in results:
        for name, count in counts.items():
            cells = (
                *(noise.levels, str(noise.num_rows), name, str(count.calls)),
                rate(count.alarms, count.calls),
                f"{100 * upper_bound(count.alarms, count.calls):.1f}",
                rate(count.found[0.05], count.calls),
            )
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def power_table(results: Sequence[tuple[Noise, dict[str, Counts]]]) -> list[str]:
    """Return the table of power over the size of the slowdown."""
    head = [f"{100 * effect:.0f} %" for effect in EFFECTS[1:]]
    lines = [
        "| noise | rows | rule | " + " | ".join(head) + " |",
        "|---|---:|---|" + "---:|" * len(head),
    ]
    for noise, counts in results:
        for name, count in counts.items():
            cells = [rate(count.found[effect], count.calls) for effect in EFFECTS[1:]]
            lines.append(f"| {noise.levels} | {noise.num_rows} | {name} | {' | '.join(cells)} |")
    return lines


def verdict(noise: Noise, count: Counts) -> str:
    """Return one line that holds a result against the targets."""
    false, found = count.alarms / count.calls, count.found[0.05] / count.calls
    words = ["MISSED", "met"]
    return (
        f"{noise.levels}, {noise.num_rows} rows: false alarms {100 * false:.2f} % of calls "
        f"(target at most 1 %: {words[false <= MOST_FALSE]}), 5 % found in {100 * found:.1f} % "
        f"(target at least 95 %: {words[found >= LEAST_FOUND]})"
    )


def text_of(results: Sequence[tuple[Noise, dict[str, Counts]]]) -> str:
    """Return the generated part of the documentation."""
    first = results[0][0]
    about = (
        f"Simulated, seed {SEED}: {first.num_launches} launches a side that differ by "
        f"{100 * LAUNCH_SD:g} % (standard deviation of their medians), {first.num_steps} steps "
        "each, autocorrelated 0.6 with heavy tails and spikes. *At most*: upper 95 % bound of the "
        "rate."
    )
    parts = [[about], false_alarm_table(results)]
    parts += [["Slowed rows that were found, % of calls, by the size of the slowdown:"]]
    parts += [power_table(results)]
    return "\n\n".join("\n".join(part) for part in parts)


def write_into(path: Path, text: str, marks: tuple[str, str]) -> None:
    """Replace what stands between two marks in a document."""
    begin, end = marks
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Simulate, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="for each noise with 12 rows")
    parser.add_argument("--write", type=Path, help="document with the marks")
    options = parser.parse_args()
    plans = [(Noise(levels), options.calls) for levels in LEVELS]
    plans += [(Noise("normal", num_rows=1), options.calls)]
    plans += [(Noise("normal", num_rows=50), options.calls)]
    results = []
    for noise, calls in plans:
        began = time.perf_counter()
        counts = simulate(noise, calls)
        results.append((noise, counts))
        print(f"{verdict(noise, counts[GATE])}; {time.perf_counter() - began:.0f} s", flush=True)
    text = text_of(results)
    print(text)
    if options.write:
        write_into(options.write, text, MARKS)


if __name__ == "__main__":
    main()
