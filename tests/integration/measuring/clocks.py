"""One of two ranks that compare clocks: run as a program by `test_alignment`.

Arguments: rank, folder for the store, scenarios. Rank 1's clock is false in a known way, another
one in each scenario. ``NAME+force`` compares clocks even where they look like one. Prints what it
found as JSON, by scenario.
"""

import json
import sys
import time
from pathlib import Path

from scalebench.worker.measure.alignment import combine, measure_offset
from scalebench.worker.process.context import connected
from tests.builders.runs import make_cell

WINDOW_S = 2.0
DRIFT = 100e-6
FALSE = {
    "true": {},
    "offset": {"offset_ns": 3_000_000_000},
    "behind": {"offset_ns": -3_000_000_000},
    "step": {"offset_ns": 3_000_000_000, "step_ns": 50_000_000},
    "drift": {"offset_ns": 3_000_000_000, "drift": DRIFT},
}


class FalseClock:
    """The machine's clock, plus an offset that drifts, plus a step once `stepped` is set."""

    def __init__(self, offset_ns=0, drift=0.0, step_ns=0):
        self.offset_ns = offset_ns
        self.drift = drift
        self.step_ns = step_ns
        self.stepped = False
        self.start_ns = time.monotonic_ns()

    def __call__(self):
        return self.shown_at(time.monotonic_ns())

    def shown_at(self, true_ns):
        drifted = round(self.drift * (true_ns - self.start_ns))
        return true_ns + self.offset_ns + drifted + self.stepped * self.step_ns


class Comparison:
    """The clocks of one scenario, compared at both ends of a window."""

    def __init__(self, context, scenario):
        name, _, force = scenario.partition("+")
        self.context = context
        self.clock = FalseClock(**FALSE[name] if context.rank == 1 else {})
        self.force = bool(force)
        self.before = measure_offset(context, self.clock, self.force)
        self.instants = [self._now()]

    def _now(self):
        true = time.monotonic_ns()
        return true, self.clock.shown_at(true)

    def end(self):
        """Close the window; return the alignment and its errors at both ends."""
        self.clock.stepped = True
        self.instants.append(self._now())
        alignment = combine(self.before, measure_offset(self.context, self.clock, self.force))
        # Rank 0's clock is the machine's: what it showed at an instant is the instant.
        errors = [alignment.on_rank_0(shown) - true for true, shown in self.instants]
        return {"alignment": alignment.model_dump(), "errors_ns": errors}


def main(rank, store, scenarios):
    with connected(make_cell(collective_timeout_s=60.0, limit_s=60.0), rank, store) as context:
        compared = {scenario: Comparison(context, scenario) for scenario in scenarios}
        time.sleep(WINDOW_S)
        found = {scenario: comparison.end() for scenario, comparison in compared.items()}
        context.barrier()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
