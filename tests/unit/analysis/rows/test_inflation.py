"""Why a rank computes longer: a smaller batch, sharing the machine, and the strategy's own."""

import math

import numpy as np
import pytest

from scalebench.analysis.rows.efficiency import Ratios
from scalebench.analysis.rows.inflation import (
    NOT_MEASURED,
    NOT_PLANNED,
    NOT_TOGETHER,
    OVERSUBSCRIBED,
    inflation_of,
)
from scalebench.analysis.rows.rank_excess import excesses, probable
from scalebench.records.rows.budget import Budget
from scalebench.records.run import CellResult
from scalebench.spec import Cell
from scalebench.stats import Estimate
from tests.builders.runs import make_cell, make_failed, make_result, make_run

PLAIN_S, HALF_S, CROWDED_S, DDP_S = 0.4, 0.22, 0.242, 0.3
"""A plain step on 32 samples, on 16, on 16 beside another rank; DDP's at N=2."""

WOBBLE = (0.0, 0.002, -0.001)


def independent(num_ranks: int, repeat: int) -> Cell:
    return make_cell(
        "plain",
        num_ranks,
        repeat,
        purpose="independent",
        rank_batch=16,
        global_batch=16 * num_ranks,
        backend=None if num_ranks == 1 else "gloo",
    )


def launch(cell: Cell, step_s: float) -> CellResult:
    phase = cell.repeat + cell.world_size + (cell.purpose == "independent")
    return make_result(cell, step_s * math.exp(WOBBLE[phase % 3]))


def rounds(**changes: object) -> list[CellResult]:
    return [
        launch(cell, step_s)
        for repeat in range(3)
        for cell, step_s in (
            (make_cell("plain", 1, repeat), PLAIN_S),
            (make_cell("ddp", 2, repeat, **changes), DDP_S),
            (independent(1, repeat), HALF_S),
            (independent(2, repeat), CROWDED_S),
        )
    ]


def budget(compute_inflation_s: float) -> Budget:
    estimate = Estimate(
        value=compute_inflation_s,
        low=compute_inflation_s - 0.01,
        high=compute_inflation_s + 0.01,
        n=3,
    )
    rest = dict.fromkeys(
        ("exposed_transfer_s", "wait_s", "bubble_s", "codec_s", "data_stall_s", "other_idle_s"), 0.0
    )
    return Budget(
        ideal_s=PLAIN_S / 2,
        compute_inflation_s=compute_inflation_s,
        residual_s=0.0,
        measured_s=DDP_S,
        rank=0,
        closes=True,
        estimates={"compute_inflation_s": estimate},
        **rest,
    )


def found_in(results: list[CellResult], inflation_s: float = 0.06):  # type: ignore[no-untyped-def]
    ratios = Ratios.of(make_run(results))
    row, base = ratios.table["ddp", "ddp", 2], ratios.table["ddp", "plain", 1]
    return inflation_of(row, base, ratios, budget(inflation_s))


def reasons(results: list[CellResult]) -> set[str]:
    return set(found_in(results).unavailable.values())


def test_the_reason_is_the_one_that_holds() -> None:
    failed = [make_failed(r.cell) if r.cell.purpose == "independent" else r for r in rounds()]
    assert reasons(failed) == {NOT_TOGETHER}
    rows = [r for r in rounds() if r.cell.purpose == "measure"]
    assert reasons(rows) == {NOT_MEASURED}
    turns = [r.model_copy(update={"shared_with": [r.cell.id]}) for r in rows]
    assert reasons(turns) == {NOT_PLANNED}
    crowded = [r for r in rounds(oversubscribed=True) if r.cell.purpose == "measure"]
    assert reasons(crowded) == {OVERSUBSCRIBED}


STEPS, STEP_S = 64, 0.1


def launches(own, others=0.0006, num_ranks=2, num_launches=3, steps=STEPS, noise=0.5, seed=0):
    """Seconds by rank and step: rank 1 has ``own``, a number or one for each step."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(num_launches):
        seconds = np.full((num_ranks, steps), others)
        seconds[1] = np.resize(own, steps)
        found.append(seconds * random.lognormal(0, noise, (num_ranks, steps)))
    return found


BURSTS = (0.140, 0.0, 0.0, 0.0)
"""Four workers deliver four batches at once."""


@pytest.mark.parametrize(
    ("seconds", "longer_s"),
    [
        pytest.param(launches(0.035, noise=1.0), 0.035, id="fifty times as long"),
        pytest.param(launches(BURSTS, num_launches=1), 0.035, id="in bursts"),
        pytest.param(launches(0.035, num_ranks=8), 0.035, id="one of eight"),
        pytest.param(launches(0.035, steps=12, num_launches=1), 0.035, id="few steps"),
    ],
)
def test_one_rank_is_named_with_its_size(seconds, longer_s):
    (found,) = excesses("data_stall", seconds, STEP_S)
    assert (found.rank, found.part) == (1, "data_stall")
    of_rank = np.mean([one[1].mean() for one in seconds])
    assert found.own_s == pytest.approx(of_rank) and found.own_s > 0.6 * longer_s
    assert found.others_s < 0.002
    assert 0.9 * found.num_blocks <= found.num_longer <= found.num_blocks


TURNED = [*launches(0.02, 0.005), *(one[::-1] for one in launches(0.02, 0.005, num_launches=1))]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(launches(0.02, 0.02, noise=1.0), id="noise alone"),
        pytest.param(TURNED, id="another rank in one launch"),
        pytest.param(launches(0.035, steps=6, num_launches=1), id="too few steps"),
        pytest.param(launches(0.0008, 0.0001), id="less than a hundredth of a step"),
        pytest.param(launches(0.026, 0.02, noise=0.01), id="hardly longer"),
        pytest.param([], id="nothing recorded"),
    ],
)
def test_nobody_is_named(seconds):
    assert excesses("data_stall", seconds, STEP_S) == []


def test_equal_ranks_are_named_as_seldom_as_the_test_says():
    named = sum(
        bool(excesses("compute", launches(0.02, 0.02, num_ranks=4, noise=1.5, seed=seed), 1e-3))
        for seed in range(200)
    )
    assert named <= 2


LATE = np.array([[0.0, 0.001], [0.031, 0.03]])
"""Two traced steps, in each of which rank 1 is 30 ms late."""


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        pytest.param([LATE], 2, id="both traced steps"),
        pytest.param([LATE, LATE, None], 4, id="of both launches"),
        pytest.param([LATE, LATE[::-1]], None, id="another rank in one launch"),
        pytest.param([LATE[:, :1]], None, id="a single step"),
        pytest.param([0.3 * LATE], None, id="less than a tenth of a step"),
        pytest.param([None], None, id="nothing traced"),
    ],
)
def test_a_rank_that_is_late_in_all_of_a_few_steps_is_probably_the_slow_one(seconds, named):
    found = probable(seconds, STEP_S)
    assert [one.num_blocks for one in found] == ([named] if named else [])
    assert all(one.rank == 1 and not one.certain for one in found)
    assert not excesses("lateness", [one for one in seconds if one is not None], STEP_S)
