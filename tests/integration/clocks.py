"""One of two ranks that compare clocks: run as a program by `test_alignment`.

Arguments: rank, folder for the store, name of a scenario. Rank 1's clock is false in a known way.
Prints what it found as JSON.
"""

import json
import sys
import time
from pathlib import Path

from scalebench.worker.alignment import combine, measure_offset
from scalebench.worker.context import connected
from tests.unit.runs import make_cell

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

    def __init__(self, offset_ns: int = 0, drift: float = 0.0, step_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        self.drift = drift
        self.step_ns = step_ns
        self.stepped = False
        self.start_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.shown_at(time.monotonic_ns())

    def shown_at(self, true_ns: int) -> int:
        drifted = round(self.drift * (true_ns - self.start_ns))
        return true_ns + self.offset_ns + drifted + self.stepped * self.step_ns


def main(rank: int, store: Path, scenario: str, force: bool) -> None:
    clock = FalseClock(**FALSE[scenario] if rank == 1 else {})
    with connected(make_cell(collective_timeout_s=60.0, limit_s=60.0), rank, store) as context:
        before = measure_offset(context, clock, force)
        instants = [(t := time.monotonic_ns(), clock.shown_at(t))]
        time.sleep(WINDOW_S)
        clock.stepped = True
        instants.append((t := time.monotonic_ns(), clock.shown_at(t)))
        alignment = combine(before, measure_offset(context, clock, force))
        context.barrier()
    # Rank 0's clock is the machine's: what it showed at an instant is the instant.
    errors = [alignment.on_rank_0(shown) - true for true, shown in instants]
    print(json.dumps({"alignment": alignment.model_dump(), "errors_ns": errors}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "force")
