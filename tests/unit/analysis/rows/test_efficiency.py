"""What the blocks of launches that took turns know of them, and how sure intervals are taken."""

import math

import numpy as np
import pytest

from scalebench.analysis.rows.efficiency import Ratios
from scalebench.records.rank import Block, RankRecord
from scalebench.records.run import CellResult
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
