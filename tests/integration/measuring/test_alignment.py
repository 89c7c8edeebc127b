"""Clocks that are false in a known way, compared by two real ranks, which this file is run as."""

import time

import pytest

from scalebench.worker.measure.rounds import combine, measure_offset
from scalebench.worker.process.context import connected
from tests.builders.runs import make_cell
from tests.examples import cases
from tests.integration.programs import main, reports_of

pytestmark = pytest.mark.timed

USEFUL_NS = 20_000_000
"""A bound that is wider says nothing; between two idle processes it is a hundredth of this."""
WINDOW_S = 2.0
DRIFT = 100e-6
FALSE = {
    "true": {},
    "offset": {"offset_ns": 3_000_000_000},
    "behind": {"offset_ns": -3_000_000_000},
    "step": {"offset_ns": 3_000_000_000, "step_ns": 50_000_000},
    "drift": {"offset_ns": 3_000_000_000, "drift": DRIFT},
}
SCENARIOS = (
    *("true+force", "offset+force", "drift+force", "step+force"),
    *("true", "offset", "behind"),
)
"""How rank 1's clock is false; with ``force`` clocks are compared even where they look like one."""


class FalseClock:
    """The machine's clock, plus an offset that drifts, plus a step once `stepped` is set."""

    def __init__(self, offset_ns=0, drift=0.0, step_ns=0):
        self.offset_ns, self.drift, self.step_ns = offset_ns, drift, step_ns
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
        self.context, self.force = context, bool(force)
        self.clock = FalseClock(**FALSE[name] if context.rank == 1 else {})
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
        return alignment.model_dump() | {"error_ns": max(map(abs, errors))}


def run_rank(folder, rank, world_size):
    cell = make_cell(collective_timeout_s=60.0, limit_s=60.0)
    with connected(cell, rank, folder / "store") as context:
        compared = {scenario: Comparison(context, scenario) for scenario in SCENARIOS}
        time.sleep(WINDOW_S)
        found = {scenario: comparison.end() for scenario, comparison in compared.items()}
        context.barrier()
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return reports_of("measuring.test_alignment", tmp_path_factory.mktemp("clocks"), [2])[2]


@cases("scenario, drift", ("true", 0.0), ("offset", 0.0), ("drift", DRIFT))
def test_a_known_clock_is_recovered_within_the_bound(compared, scenario, drift):
    reference, found = (rank[f"{scenario}+force"] for rank in compared)
    assert reference["offset_ns"] == reference["bound_ns"] == 0
    assert (found["method"], found["stepped"]) == ("ping-pong", None)
    assert found["error_ns"] <= found["bound_ns"] and 0 < found["bound_ns"] < USEFUL_NS
    assert abs(found["drift"] - drift) <= 2 * found["bound_ns"] / (WINDOW_S * 1e9)


def test_a_clock_that_stepped_is_told_and_the_bound_covers_it(compared):
    found = compared[1]["step+force"]
    assert "moved by +5" in found["stepped"] or "moved by +4" in found["stepped"]
    assert 25_000_000 <= found["bound_ns"] < 25_000_000 + USEFUL_NS
    assert found["error_ns"] <= found["bound_ns"]


def test_ranks_of_one_machine_share_its_clock(compared):
    for found in (rank["true"] for rank in compared):
        assert found["method"] == "shared clock"
        assert found["offset_ns"] == found["bound_ns"] == found["drift"] == 0


@cases("scenario", "offset", "behind")
def test_clocks_of_one_name_that_disagree_are_not_taken_for_one(compared, scenario):
    found = compared[1][scenario]
    assert found["method"] == "ping-pong" and found["error_ns"] <= found["bound_ns"] < USEFUL_NS


if __name__ == "__main__":
    main(run_rank)
