"""False alarms of the gate where runs differ by their job and host, by simulation; a table.

``python -m benchmarks.gate_hosts`` runs everything and prints; ``--write FILE`` puts the table into
the documentation. Nothing here is measured. Every run has an effect of its own beside the noise of
its launches: of the host (all rows alike) and of each row (where its processes land).
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate_noise import LEVEL_SD, Noise
from benchmarks.gate_power import rate, upper_bound, write_into
from benchmarks.gate_rules import Medians, gate_alarms, gate_pairs

SEED = 1729
MARKS = "<!-- generated: hosts begin -->", "<!-- generated: hosts end -->"
MEDIAN_ERROR = 0.006
"""Of a launch's median step, from within the launch; with the levels, launches differ by 1 %."""

ACCEPTED = (1, 3, 5, 8)
EFFECTS = (0.05, 0.10)
EFFECT_ON_ALL = 0.10
MOST_FALSE = 0.01


@dataclass(frozen=True)
class Hosts:
    """How runs differ beside their launches; standard deviations of logarithms.

    Attributes:
        name: In words.
        host_sd: Between hosts, all rows of a run alike.
        row_sd: Between runs, every row by itself.
        two_kinds: Whether half of the hosts are 3 % slower than the other half.
        new_is_slower: By how much the new run's host is always slower than the others' mean.
    """

    name: str
    host_sd: float = 0.0
    row_sd: float = 0.0
    two_kinds: bool = False
    new_is_slower: float = 0.0

    def effect(self, random: np.random.Generator, num_rows: int) -> NDArray[np.float64]:
        """Return what a run adds to the logarithm of each row's step, shape ``[rows]``."""
        host = random.normal(0, self.host_sd)
        if self.two_kinds:
            host += math.log1p(0.03) * random.integers(2)
        return np.asarray(host + random.normal(0, self.row_sd, num_rows))


HOSTS = (
    Hosts("none"),
    Hosts("hosts differ by 1 %", host_sd=0.01),
    Hosts("hosts differ by 2 %", host_sd=0.02),
    Hosts("hosts differ by 3 %", host_sd=0.03),
    Hosts("rows differ by 2 % from run to run", row_sd=0.02),
    Hosts("half of the hosts are 3 % slower", two_kinds=True),
    Hosts("hosts differ by 3 %, the new one is 3 % slower", host_sd=0.03, new_is_slower=0.03),
    Hosts("hosts differ by 2 %, the new one is 3 % slower", host_sd=0.02, new_is_slower=0.03),
    Hosts("hosts differ by 1 %, the new one is 3 % slower", host_sd=0.01, new_is_slower=0.03),
    Hosts("none, but the new one is 3 % slower", new_is_slower=0.03),
)


@dataclass
class HostCounts:
    """What the gate did with so many accepted runs.

    Attributes:
        calls: In each of them, once nothing changed and once for each effect a row is slower.
        alarms: Calls with any alarm where nothing changed.
        blind_alarms: The same, with the launches of all accepted runs taken for those of one.
        found: Effect → calls in which the slowed row was found.
        all_found: Calls with any alarm where all rows were slower by `EFFECT_ON_ALL`.
    """

    calls: int
    alarms: int
    blind_alarms: int
    found: dict[float, int]
    all_found: int = 0


def simulate_hosts(
    hosts: Hosts, accepted: int, calls: int, num_rows: int = 12, seed: int = SEED
) -> HostCounts:
    """Count alarms over many calls, each with fresh runs on fresh hosts."""
    random = np.random.default_rng((seed, accepted, num_rows))
    noise = Noise("normal", num_rows=num_rows)
    counts = HostCounts(calls, 0, 0, dict.fromkeys(EFFECTS, 0))
    slowed = num_rows // 2
    for _ in range(calls):
        first, *further, new = (_run(noise, hosts, random) for _ in range(accepted + 1))
        new = (new[0] + math.log1p(hosts.new_is_slower), new[1])
        pairs = gate_pairs(first, new, *further)
        counts.alarms += bool(gate_alarms(pairs, num_rows)[0])
        blind = [replace(pair, runs=(), hosts=0.0) for pair in pairs]
        counts.blind_alarms += bool(gate_alarms(blind, num_rows)[0])
        for effect in EFFECTS:
            slower = new[0].copy()
            slower[slowed] += math.log1p(effect)
            pairs = gate_pairs(first, (slower, new[1]), *further)
            counts.found[effect] += slowed in gate_alarms(pairs, num_rows)[0]
        pairs = gate_pairs(first, (new[0] + math.log1p(EFFECT_ON_ALL), new[1]), *further)
        counts.all_found += bool(gate_alarms(pairs, num_rows)[0])
    return counts


def _run(noise: Noise, hosts: Hosts, random: np.random.Generator) -> Medians:
    """Return the medians of a run's launches, and what each launch knows of its own."""
    levels = noise.launch_levels(random)
    medians = levels + random.normal(0, MEDIAN_ERROR, levels.shape)
    within = np.full(levels.shape, MEDIAN_ERROR**2)
    return medians + hosts.effect(random, noise.num_rows)[:, None], within


def table(results: Sequence[tuple[Hosts, int, HostCounts]]) -> list[str]:
    """Return a line for each kind of host and each number of accepted runs."""
    head = [f"{100 * effect:g} % found, %" for effect in EFFECTS]
    head.append(f"{100 * EFFECT_ON_ALL:g} % of all rows found, %")
    lines = [
        "| how runs differ | accepted runs | with a false alarm, % | at most, % | "
        f"run-to-run variance left out, % | {' | '.join(head)} |",
        "|---|---:|---:|---:|---:|" + "---:|" * len(head),
    ]
    for hosts, accepted, count in results:
        cells = [hosts.name, str(accepted), rate(count.alarms, count.calls)]
        cells += [f"{100 * upper_bound(count.alarms, count.calls):.1f}"]
        cells += [rate(count.blind_alarms, count.calls) if accepted > 1 else "–"]
        cells += [rate(count.found[effect], count.calls) for effect in EFFECTS]
        cells += [rate(count.all_found, count.calls)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def text_of(results: Sequence[tuple[Hosts, int, HostCounts]]) -> str:
    """Return the generated part of the documentation."""
    about = (
        f"Simulated, seed {SEED}: {results[0][2].calls} calls a line, 12 rows, 5 launches a run "
        f"that differ by {100 * math.hypot(LEVEL_SD, MEDIAN_ERROR):.0f} %. With one accepted run "
        "nothing tells how runs differ. *At most*: upper 95 % bound of the rate. *Run-to-run "
        "variance left out*: the same calls, all accepted launches taken for those of one run. "
        f"*Of all rows*: every row is {100 * EFFECT_ON_ALL:g} % slower, the plain model as well."
    )
    return "\n".join([about, "", *table(results)])


def main() -> None:
    """Simulate, print, and write where told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500, help="for each line")
    parser.add_argument("--write", type=Path, help="document with the marks")
    options = parser.parse_args()
    results = []
    for hosts in HOSTS:
        for accepted in ACCEPTED:
            began = time.perf_counter()
            counts = simulate_hosts(hosts, accepted, options.calls)
            results.append((hosts, accepted, counts))
            words = ["MISSED", "met"][counts.alarms <= MOST_FALSE * counts.calls]
            told = words if accepted > 1 else "not promised"
            print(
                f"{hosts.name}, {accepted} accepted: false alarms "
                f"{rate(counts.alarms, counts.calls)} % of calls (target at most 1 %: {told}); "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
    text = text_of(results)
    print(text)
    if options.write:
        write_into(options.write, text, MARKS)


if __name__ == "__main__":
    main()
