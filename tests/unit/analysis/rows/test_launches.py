"""Which cells of a run make up which row, and what is known of their launches."""

import math

import pytest

from scalebench.analysis.paired_blocks import Block as Turn
from scalebench.analysis.rows.launches import (
    Launches,
    clean_blocks,
    grouped,
    independent,
    independent_case,
)
from scalebench.analysis.steps import clean_pace
from scalebench.gate.bootstrap import mean_variance
from scalebench.records.rank import Block
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import (
    make_cell,
    make_failed,
    make_inspection,
    make_record,
    make_result,
    make_run,
)
from tests.builders.traced import make_trace, make_traced_record, make_traced_result


def purposed(purpose, n=2, repeat=0, **changes):
    return make_result(make_cell("ddp", n, repeat, purpose=purpose, **changes))


def test_every_cell_finds_its_row():
    first, second, third = (make_result(make_cell("ddp", 2, n), 0.1 + n) for n in range(3))
    failed = make_failed(make_cell("ddp", 3, 0))
    other = make_result(make_cell("zero1", 2, 0, suite="another"))
    inspection, of_three = make_inspection(first.cell), make_inspection(failed.cell)
    shards = [purposed("shard", repeat=n) for n in range(2)]
    broken = make_failed(make_cell("ddp", 2, 2, purpose="shard"))
    saves = [purposed("save"), purposed("restore"), make_failed(purposed("fail", n=3).cell)]
    results = [first, inspection, second, failed, *shards, broken, *saves, other, of_three]
    plan = [one.cell for one in (first, inspection, second, third, failed, *shards, *saves, other)]
    table = grouped(make_run(results, plan))
    assert list(table) == [("ddp", "ddp", 2), ("ddp", "ddp", 3), ("another", "zero1", 2)]
    two, three, last = table.values()
    assert two.cell == first.cell and two.measured == {0: first, 1: second}
    assert (two.num_planned, three.num_planned, last.num_planned) == (3, 1, 1)
    assert (two.inspection, three.inspection, last.inspection) == (inspection, of_three, None)
    assert (two.shards, two.checkpoints) == (tuple(shards), tuple(saves[:2]))
    assert (three.shards, three.checkpoints) == ((), (saves[2],))
    assert (three.measured, three.good, last.shards) == ({0: failed}, {}, ())


def test_only_launches_that_succeeded_are_timed():
    good = [make_result(make_cell("ddp", 2, n), step_s) for n, step_s in ((0, 0.5), (4, 0.25))]
    row = Launches(good[0].cell, measured={0: good[0], 2: make_failed(good[0].cell), 4: good[1]})
    assert list(row.good) == [0, 4]
    assert row.log_steps == pytest.approx({0: math.log(0.5), 4: math.log(0.25)})
    assert (row.within, row.blocks, row.attributed) == (0.0, {}, {})
    nothing = Launches(good[0].cell)
    assert (nothing.within, nothing.log_steps, nothing.num_planned) == (0.0, {}, 0)


def test_what_a_launch_does_not_know_of_its_step_is_the_mean_over_launches():
    each = [[0.1, 0.2, 0.4, 0.3, 0.2], [0.5, 0.6, 0.5, 0.9, 0.7]]
    results = [make_result(make_cell("ddp", 1), ranks=[make_record(clean_s=s)]) for s in each]
    own = [mean_variance(clean_pace(result)) for result in results]
    row = Launches(results[0].cell, measured=dict(enumerate(results)))
    assert row.within == pytest.approx((own[0] + own[1]) / 2) and own[0] != own[1]


def test_a_launch_that_was_traced_is_attributed():
    traced = make_traced_result(make_traced_record(0, make_trace()), case="plain")
    row = Launches(traced.cell, measured={3: traced, 5: make_result(make_cell("plain", 1))})
    assert list(row.attributed) == [3] and row.attributed[3].result == traced


def block(first, count, start=0, end=9, phase="clean"):
    return Block(phase=phase, first=first, count=count, start_ns=start, end_ns=end)


STEPS = {0: [9, 1, 2, 9, 4, 6, 8, 8, 9, 9, 9, 9], 1: [9, 3, 2, 9, 2, 2, 2, 8, 9, 9, 9, 9]}
BLOCKS = [
    block(0, 3, 100, 103),
    block(3, 4, 110, 111),
    block(7, 1, 120, 130),  # one step: none is left
    block(8, 2, None, 140),
    block(8, 2, 150, None),
    block(8, 2, 160, 160),
    block(8, 2, 170, 175, "warmup"),
    block(10, 2, 180, 181),
]


def in_turns(**changes):
    later = [one.model_copy(update={"start_ns": 1, "end_ns": 2}) for one in BLOCKS]
    ranks = [
        make_record(rank, step_s=STEPS[rank], loss=[1.0] * 12, blocks=blocks)
        for rank, blocks in ((0, BLOCKS), (1, later))
    ]
    cell = make_cell("ddp", 2, **changes)
    return make_result(cell, ranks=ranks, shared_with=["another"])


def test_clean_blocks_have_the_mean_step_of_the_job():
    """By rank 0's clock. Rank 0 is done 3 s after the first step, rank 1 after 5; then 18 and 6."""
    assert clean_blocks(in_turns()) == [Turn(100, 103, 2.5), Turn(110, 111, 6.0), Turn(180, 181, 9)]


def test_independent_ranks_have_the_mean_of_their_own_steps():
    found = clean_blocks(in_turns(purpose="independent"))
    assert found == [Turn(100, 103, 2.0), Turn(110, 111, 4.0), Turn(180, 181, 9.0)]


def test_only_launches_that_took_turns_have_blocks():
    alone = in_turns().model_copy(update={"shared_with": []})
    row = Launches(alone.cell, measured={0: alone, 1: in_turns()})
    assert row.blocks == {1: clean_blocks(in_turns())}


def test_independent_ranks_are_grouped_by_their_batch():
    def cell(n, repeat, batch):
        return make_cell("plain", n, repeat, purpose="independent", rank_batch=batch)

    results = [make_result(cell(2, 0, 16)), make_result(cell(3, 0, 16)), make_result(cell(2, 0, 8))]
    planned = [*(one.cell for one in results), cell(2, 1, 16), make_cell("plain", 1)]
    table = independent(make_run(results, planned))
    assert list(table) == [
        ("ddp", "plain, 16 samples each", 2),
        ("ddp", "plain, 16 samples each", 3),
        ("ddp", "plain, 8 samples each", 2),
    ]
    first = table["ddp", independent_case("plain", 16), 2]
    assert (first.cell, first.measured) == (results[0].cell, {0: results[0]})
    assert [one.num_planned for one in table.values()] == [2, 1, 1]


TARGET = ScriptTarget(name="train", program="train.py")


def scripted(n, repeat=0, samples=16.0, case="script", **changes):
    fields = {"workload": TARGET, "scaling": "weak", "global_batch": n, "rank_batch": 1}
    cell = make_cell(case, n, repeat, strategy=Script(), backend=None, **fields | changes)
    told = {"samples_per_step": samples, "facts": {"backend": "nccl"}}
    return make_result(cell, ranks=[make_record(rank, **told) for rank in range(n)])


def test_a_row_of_a_script_has_the_batch_that_was_counted_where_it_succeeded():
    failed = make_failed(scripted(3).cell)
    run = make_run([failed, scripted(3, 1, samples=5.0), scripted(1, samples=7.0)])
    row = grouped(run)["ddp", "script", 3]
    assert (row.cell.global_batch, row.cell.rank_batch, row.cell.backend) == (15, 5, "nccl")
    assert (row.cell.repeat, row.cell.scaling) == (0, "weak")
    assert row.measured[1].cell.global_batch == 15
    alone = grouped(make_run([failed]))["ddp", "script", 3]
    assert (alone.cell.global_batch, alone.cell.backend) == (3, None)


def test_a_script_whose_batch_stays_the_same_scales_strongly():
    """Of two cases, one with the same 12 samples at both sizes."""
    results = [scripted(1, samples=12.0), scripted(3, samples=4.0)]
    others = [scripted(n, samples=4.0, case="other") for n in (1, 3)]
    table = grouped(make_run([*results, *others]))
    scalings = {key[1:]: row.cell.scaling for key, row in table.items()}
    assert scalings == {
        ("script", 1): "strong", ("script", 3): "strong",
        ("other", 1): "weak", ("other", 3): "weak",
    }  # fmt: skip
    assert table["ddp", "script", 3].measured[0].cell.scaling == "strong"
    # Without a launch that succeeded at N=1 nobody knows.
    broken = grouped(make_run([make_failed(results[0].cell), results[1]]))
    assert {row.cell.scaling for row in broken.values()} == {"weak"}
