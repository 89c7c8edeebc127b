import pynvml
import pytest

from scalebench.records.outcome import (
    contradiction,
    launched_result,
    skipped_result,
    with_common_steps,
)
from scalebench.records.rank import Block, Verification
from scalebench.records.run import Failure
from scalebench.records.telemetry import NodeTrack
from tests.builders.runs import STARTED, make_cell, make_record
from tests.builders.watched import B, make_twin, sample

CELL = make_cell(world_size=2)


def outcome(records=None, failure=None):
    records = [make_record(0), make_record(1)] if records is None else records
    return launched_result(CELL, records, failure, STARTED, (0.4, 1.5))


def test_a_launch_is_well_when_it_is_whole_finite_and_correct():
    result = outcome()
    assert (result.status, result.reason, result.failure) == ("ok", None, None)
    assert (result.launch_s, result.wall_s, result.started) == (0.4, 1.5, STARTED)
    assert [record.rank for record in result.ranks] == [0, 1]


def test_a_loss_that_is_not_finite_fails_the_launch_and_says_where():
    bad = make_record(1, loss=[5.0, 5.0, 5.0, None, None, None])  # null stands for NaN
    result = outcome([make_record(0), bad])
    assert result.status == "failed"
    assert result.reason == "the loss is not finite at step 3 on rank 1"


def test_of_several_losses_the_first_step_that_went_wrong_is_named():
    records = [make_record(0, loss=[1.0, 1.0, None]), make_record(1, loss=[1.0, None, None])]
    assert outcome(records).reason == "the loss is not finite at step 1 on rank 1"


def test_a_missing_record_fails_the_launch_and_is_named():
    assert outcome([make_record(0)]).reason == "no record of rank 1"
    assert outcome([]).reason == "no record of rank 0, 1"
    assert outcome([]).status == "failed"


def test_a_rank_that_the_others_did_without_is_named_and_no_failure():
    lost = Failure(rank=1, kind="signal", message="killed by SIGKILL")
    result = launched_result(CELL, [make_record(0)], None, STARTED, (0.4, 1.5), lost=[lost])
    assert (result.status, result.lost) == ("ok", [lost])
    assert contradiction(result, CELL) is None
    without = result.model_copy(update={"lost": []})
    assert contradiction(without, CELL) == "it does not contain each of 2 ranks once"


def test_a_result_that_deviates_is_failed_with_its_reason():
    wrong = Verification(status="deviates", reason="gradients deviate by 0.1")
    result = outcome([make_record(0, verification=wrong), make_record(1)])
    assert (result.status, result.reason) == ("failed", "gradients deviate by 0.1")


@pytest.mark.parametrize("status", ["verified", "unverified", "reference"])
def test_what_is_not_known_to_be_wrong_is_ok(status):
    checked = Verification(status=status)
    assert outcome([make_record(0, verification=checked), make_record(1)]).status == "ok"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *(("oom", "oom"), ("unsupported", "skipped"), ("exception", "failed")),
        *(("peer", "failed"), ("signal", "failed"), ("limit", "failed"), ("exit", "failed")),
    ],
)
def test_the_kind_of_failure_decides_the_status(kind, status):
    result = outcome([], Failure(rank=1, kind=kind, message="what happened"))
    assert result.status == status
    assert "what happened" in result.reason
    assert ("rank 1: " in result.reason) is (status != "skipped")


def test_a_failure_counts_more_than_what_the_ranks_left():
    result = outcome(failure=Failure(rank=None, kind="limit", message="too slow"))
    assert (result.status, result.reason) == ("failed", "too slow")
    assert len(result.ranks) == 2


def test_a_skipped_cell_has_a_reason_and_no_measurement():
    result = skipped_result(CELL, "too few GPUs", STARTED)
    assert (result.status, result.reason, result.ranks) == ("skipped", "too few GPUs", [])
    assert (result.launch_s, result.wall_s) == (None, None)


def test_what_was_watched_goes_into_the_result():
    node = NodeTrack(unavailable={"devices": "the ranks ran on the CPU"})
    records = [make_record(0), make_record(1)]
    assert launched_result(CELL, records, None, STARTED, (0.4, 1.5), node).node == node


def test_a_gpu_that_the_driver_lost_is_named_beside_the_ranks_own_words():
    """CUDA says that a launch failed; which device is gone, NVML knows."""
    twin = make_twin()
    for query in ("TotalEnergyConsumption", "PowerUsage"):
        twin.fail(f"nvmlDeviceGet{query}", pynvml.NVML_ERROR_GPU_IS_LOST, 0.3, uuid=B)
    node, _ = sample(twin, until_s=1.0)
    failure = Failure(rank=1, kind="exception", message="AcceleratorError: unspecified failure")
    told = launched_result(CELL, [make_record(0)], failure, STARTED, (0.4, 1.5), node)
    assert told.status == "failed"
    assert told.reason == f"rank 1: {failure.message} (NVML lost GPU 1 during this launch)"
    whole, _ = sample(make_twin(), until_s=1.0)
    told = launched_result(CELL, [make_record(0)], failure, STARTED, (0.4, 1.5), whole)
    assert told.reason == f"rank 1: {failure.message}"


def test_ranks_may_run_a_block_at_different_times_but_not_different_blocks():
    first, second = make_record(0), make_record(1)
    later = [b.model_copy(update={"start_ns": 5, "end_ns": 9}) for b in second.blocks]
    apart = second.model_copy(update={"blocks": later})
    assert contradiction(outcome([first, apart]), CELL) is None
    longer = [later[0], later[1].model_copy(update={"count": later[1].count - 1})]
    other = second.model_copy(update={"blocks": longer})
    assert contradiction(outcome([first, other]), CELL) == "its ranks took different steps"


@pytest.mark.parametrize(
    ("record", "own"),
    [
        ({"trace_unavailable": "another rank left", "another_rank_left": False}, True),
        ({"trace_unavailable": "looking failed", "another_rank_left": True}, False),
        ({"trace_unavailable": "another rank left"}, False),  # version 0.1
        ({"trace_unavailable": "looking failed"}, True),
    ],
)
def test_the_reason_of_a_rank_is_told_from_that_of_another(record, own):
    assert make_record(0).model_copy(update=record).has_own_reason is own


def test_ranks_that_came_differently_far_keep_what_they_have_in_common():
    """Rank 1 was lost after the clean window; rank 0 has another block."""
    short, long = make_record(1), make_record(0)
    last = len(long.step_s)
    further = long.model_copy(
        update={
            "step_s": [*long.step_s, 9.0, 9.0],
            "loss": [*long.loss, 1.0, 1.0],
            "blocks": [*long.blocks, Block(phase="paired", first=last, count=2)],
        }
    )
    records = with_common_steps([further, short])
    assert [len(record.step_s) for record in records] == [last, last]
    assert records[0].blocks == long.blocks and len(records[0].loss) == last
    assert records[0].trace_unavailable == "another rank was lost while steps were traced"
    assert records[0].another_rank_left and not records[0].has_own_reason
    failed = further.model_copy(update={"trace_unavailable": "x", "another_rank_left": False})
    assert with_common_steps([failed, short])[0].has_own_reason
    assert with_common_steps([long, short]) == [long, short]
    result = outcome([further, short])
    assert result.status == "ok"
    assert contradiction(result, CELL) is None
