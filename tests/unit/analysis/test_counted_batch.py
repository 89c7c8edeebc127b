"""The batch of a user's script: what its ranks counted, and what that says of the scaling."""

import pytest

from scalebench.analysis.counted_batch import divides_its_batch, knows_samples, with_counted_batch
from scalebench.spec import Ddp, Script
from scalebench.spec.presets import PRESETS
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_result

TARGET = ScriptTarget(name="train", program="train.py")
TAKES_BATCH = ScriptTarget(name="train", program="train.py", arguments=("--batch", "{rank_batch}"))


def counting(*samples, workload=TARGET, facts=None, **changes):
    """A launch planned with a batch of 1 for each rank; what each rank counted in a step."""
    fields = {"strategy": Script(), "workload": workload, "backend": None, **changes}
    size = max(len(samples), 1)
    cell = make_cell("script", size, global_batch=size, rank_batch=1, **fields)
    ranks = [
        make_record(rank, samples_per_step=one, facts=facts or {})
        for rank, one in enumerate(samples)
    ]
    return make_result(cell, ranks=ranks)


def batch(result):
    cell = with_counted_batch(result).cell
    return cell.global_batch, cell.rank_batch


def test_the_batch_is_the_sum_over_the_ranks_and_a_ranks_their_mean():
    assert batch(counting(16.0, 16.0, 16.0)) == (48, 16)
    assert batch(counting(16.0, 15.0, 12.0)) == (43, 14)  # 43 / 3 = 14.33
    assert batch(counting(15.9, 16.3)) == (32, 16)
    assert batch(counting(0.6)) == (1, 1)


def test_what_some_rank_did_not_count_or_what_is_no_sample_leaves_the_stand_in():
    assert batch(counting(16.0, None, 16.0)) == (3, 1)
    assert batch(counting(0.2, 0.2)) == (2, 1)
    assert batch(counting(0.5)) == (1, 1)
    assert batch(counting()) == (1, 1)


def test_the_backend_is_the_one_that_rank_0_found():
    assert with_counted_batch(counting(16.0, facts={"backend": "gloo"})).cell.backend == "gloo"
    assert with_counted_batch(counting(16.0, backend="nccl")).cell.backend is None
    assert with_counted_batch(counting(backend="nccl")).cell.backend == "nccl"
    result = counting(16.0, 16.0, facts={"backend": "gloo"})
    other = result.ranks[1].model_copy(update={"facts": {"backend": "nccl"}})
    result = result.model_copy(update={"ranks": [result.ranks[0], other]})
    assert with_counted_batch(result).cell.backend == "gloo"


def test_another_strategy_has_the_batch_that_was_planned():
    result = counting(16.0, 16.0, strategy=Ddp(), backend="nccl")
    assert with_counted_batch(result) == result


@pytest.mark.parametrize(
    ("result", "known"),
    [
        (counting(16.0, 16.0), True),
        (counting(16.0, None), False),
        (counting(0.2, 0.2), False),
        (counting(None, strategy=Ddp()), True),
        (counting(None, workload=TAKES_BATCH), True),
        (counting(None, workload=PRESETS["gpt-tiny"]), False),
    ],
)
def test_samples_are_known_where_they_were_counted_or_given(result, known):
    assert knows_samples(result.cell, result) is known


def test_a_script_that_was_not_measured_has_no_batch_but_one_that_it_was_given():
    assert not knows_samples(counting().cell, None)
    assert knows_samples(counting(workload=TAKES_BATCH).cell, None)
    assert knows_samples(make_cell("ddp", 2), None)


def cell(size, global_batch, scaling="weak", strategy=None):
    return make_cell(
        "script",
        size,
        strategy=strategy or Script(),
        scaling=scaling,
        global_batch=global_batch,
        rank_batch=1,
    )


@pytest.mark.parametrize(
    ("cells", "divides"),
    [
        ([cell(1, 32), cell(2, 32), cell(4, 32)], True),
        ([cell(4, 32), cell(1, 32)], True),
        ([cell(1, 32), cell(2, 32)], True),
        ([cell(1, 32), cell(2, 64)], False),
        ([cell(1, 32), cell(2, 32), cell(4, 64)], False),
        ([cell(2, 32), cell(4, 32)], False),
        ([cell(1, 32)], False),
        ([], False),
        ([cell(1, 32), cell(2, 32, "strong")], False),
        ([cell(1, 32, strategy=Ddp()), cell(2, 32)], False),
        ([cell(1, 32, strategy=Ddp()), cell(2, 32, strategy=Ddp())], False),
    ],
)
def test_a_script_that_has_one_batch_at_every_size_divides_it_itself(cells, divides):
    assert divides_its_batch(cells) is divides
