"""What the blocks of launches that took turns know of them, and how sure intervals are taken."""

import math

import numpy as np
import pytest

from scalebench.analysis.rows.against_uncompressed import (
    replayed_break_even,
)
from scalebench.analysis.rows.efficiency import Ratios
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.links.profile import profile_of
from scalebench.costmodel.links.times import LinkModel
from scalebench.records.rank import Block, RankRecord
from scalebench.records.run import CellResult
from tests.builders.predictions import ask, at_one, the_link
from tests.builders.runs import make_cell, make_info, make_record, make_result, make_run

TURNS, STEPS = 6, 5
PLAIN_S, DDP_S, DRIFT = 0.1, 0.06, 0.2


def in_turns(case: str, size: int, repeat: int, step_s: float, shared: bool = True) -> CellResult:
    """A launch of short clean blocks; what the machine does to all rows grows with the blocks."""
    noise = np.random.default_rng((repeat, size)).normal(0, 0.002, TURNS)
    levels = step_s * np.exp(noise + DRIFT * np.arange(TURNS))
    steps = [float(level) for level in levels for _ in range(STEPS)]
    blocks = []
    for turn in range(TURNS):
        start = 10_000 * repeat + 100 * turn + 10 * size
        blocks.append(
            Block(phase="clean", first=STEPS * turn, count=STEPS, start_ns=start, end_ns=start + 9)
        )
    changes = {"step_s": steps, "loss": [1.0] * len(steps), "blocks": blocks}
    ranks: list[RankRecord] = [make_record(rank, **changes) for rank in range(size)]
    others = ["a", "b"] if shared else []
    return make_result(make_cell(case, size, repeat), ranks=ranks, shared_with=others)


def rounds(shared: bool = True) -> list[CellResult]:
    return [
        in_turns(case, size, repeat, step_s, shared)
        for repeat in range(3)
        for case, size, step_s in (("plain", 1, PLAIN_S), ("ddp", 1, PLAIN_S), ("ddp", 2, DDP_S))
    ]


def test_the_value_is_the_ratio_of_the_step_times_in_the_table() -> None:
    ratios = Ratios.of(make_run(rounds()))
    row, base = ratios.table["ddp", "ddp", 2], ratios.table["ddp", "plain", 1]
    found = ratios.speedup(row, base)
    assert found is not None
    logs = [base.log_steps[n] - row.log_steps[n] for n in range(3)]
    assert found.value == pytest.approx(math.exp(float(np.mean(logs))))


def test_a_run_that_looked_after_every_round_takes_wider_intervals() -> None:
    results = rounds()
    looked = make_run(results)
    spec = looked.info.spec.model_copy(update={"precision": 0.03})
    looked.info = make_info([result.cell for result in results], spec=spec)

    def width(ratios: Ratios) -> float:
        found = ratios.efficiency(ratios.table["ddp", "ddp", 2], ratios.table["ddp", "plain", 1])
        assert found is not None and found.half_width is not None
        return found.half_width

    assert width(Ratios.of(looked)) > 1.05 * width(Ratios.of(make_run(results)))


N2 = make_cell("ddp", 2, global_batch=64, rank_batch=32)
"""As large a batch per rank as at N=1, so that computing takes as long."""

LINK = the_link(2)


def launches(*results):
    return Launches(results[0].cell, measured=dict(enumerate(results)))


def exact(clean=100):
    return at_one(ask(90, num_bytes=4_000_000), clean=clean)


def smaller(clean, num_bytes=1_000_000):
    return at_one(ask(90, num_bytes=num_bytes), clean=clean)


def test_where_nothing_overlaps_it_is_the_serial_limit():
    found = replayed_break_even(N2, launches(smaller(120)), launches(exact()), LINK)
    # 3 MB less on the wire, by 2(N-1)/N = 1, against 20 ms more of computing.
    assert found.value == pytest.approx(3_000_000 / 0.02, rel=1e-3)
    assert (found.low, found.high, found.n) == (None, None, 1)


def test_what_the_computation_hides_moves_it_down():
    buckets = [ask(30, num_bytes=3_000_000), ask(90, 1, num_bytes=1_000_000)]
    hidden = at_one(*buckets)
    found = replayed_break_even(N2, launches(smaller(120)), launches(hidden), LINK)
    assert 0 < found.value < 0.7 * 3_000_000 / 0.02


def test_the_scatter_of_the_launches_is_its_interval():
    own = launches(smaller(119), smaller(121))
    whole = launches(exact(99), exact(101))
    found = replayed_break_even(N2, own, whole, LINK)
    assert found.low < 3_000_000 / 0.02 < found.high
    assert found.n == 2


def test_more_bytes_and_more_computing_never_pay():
    own = launches(smaller(120, num_bytes=5_000_000))
    assert replayed_break_even(N2, own, launches(exact()), LINK).value == 0


def test_fewer_bytes_and_less_computing_pay_on_every_link():
    with pytest.raises(Unavailable, match="shorter on every link"):
        replayed_break_even(N2, launches(smaller(90)), launches(exact()), LINK)


def test_it_says_what_is_missing():
    with pytest.raises(Unavailable, match="no launch of the strategy at N=1"):
        replayed_break_even(N2, None, launches(exact()), LINK)
    nothing = LinkModel(profile_of([], (), created="", version="", device="", backend="").fits)
    with pytest.raises(Unavailable, match="no all_reduce was calibrated"):
        replayed_break_even(N2, launches(smaller(120)), launches(exact()), nothing)
