"""What became of a launch, from what its ranks left; and results that cannot be."""

import pynvml
import pytest

from scalebench.records.outcome import contradiction, launched_result, with_common_steps
from scalebench.records.rank import Block, Verification
from scalebench.records.run import Failure
from tests.builders.runs import STARTED, make_cell, make_record
from tests.builders.watched import B, make_twin, sample

CELL = make_cell(world_size=2)
BOTH = [make_record(0), make_record(1)]
WRONG = Verification(status="deviates", reason="gradients deviate by 0.1")


def outcome(records=BOTH, failure=None, **changes):
    return launched_result(CELL, records, failure, STARTED, (0.4, 1.5), **changes)


def checked(verification):
    return [make_record(0, verification=verification), make_record(1)]


def failed(kind, rank=1):
    return Failure(rank=rank, kind=kind, message="what happened")


@pytest.mark.parametrize(
    ("records", "failure", "status", "reason"),
    [
        (BOTH, None, "ok", None),
        *(
            (checked(Verification(status=known)), None, "ok", None)
            for known in ("verified", "unverified", "reference")
        ),
        (checked(WRONG), None, "failed", "gradients deviate by 0.1"),
        (
            [make_record(0, loss=[1.0, 1.0, None]), make_record(1, loss=[1.0, None, None])],
            None,
            "failed",
            "the loss is not finite at step 1 on rank 1",
        ),
        ([make_record(0)], None, "failed", "no record of rank 1"),
        ([], None, "failed", "no record of rank 0, 1"),
        (BOTH, failed("limit", rank=None), "failed", "what happened"),
        ([], failed("oom"), "oom", "rank 1: what happened"),
        ([], failed("unsupported"), "skipped", "what happened"),
        *(
            ([], failed(kind), "failed", "rank 1: what happened")
            for kind in ("exception", "peer", "signal", "limit", "exit")
        ),
    ],
)
def test_a_launch_is_well_when_it_is_whole_finite_and_correct(records, failure, status, reason):
    result = outcome(records, failure)
    assert (result.status, result.reason, result.ranks) == (status, reason, list(records))


def test_a_rank_that_the_others_did_without_is_named_and_no_failure():
    lost = Failure(rank=1, kind="signal", message="killed by SIGKILL")
    result = outcome([make_record(0)], lost=[lost])
    assert (result.status, result.lost) == ("ok", [lost])
    assert contradiction(result, CELL) is None
    without = result.model_copy(update={"lost": []})
    assert contradiction(without, CELL) == "it does not contain each of 2 ranks once"


def test_a_gpu_that_the_driver_lost_is_named_beside_the_ranks_own_words():
    """CUDA says that a launch failed; which device is gone, NVML knows."""
    twin = make_twin()
    for query in ("TotalEnergyConsumption", "PowerUsage"):
        twin.fail(f"nvmlDeviceGet{query}", pynvml.NVML_ERROR_GPU_IS_LOST, 0.3, uuid=B)
    lost, whole = (sample(one, until_s=1.0)[0] for one in (twin, make_twin()))
    told = outcome([make_record(0)], failed("exception"), node=lost)
    assert told.reason == "rank 1: what happened (NVML lost GPU 1 during this launch)"
    told = outcome([make_record(0)], failed("exception"), node=whole)
    assert told.reason == "rank 1: what happened"


def test_ranks_may_run_a_block_at_different_times_but_not_different_blocks():
    first, second = BOTH
    later = [b.model_copy(update={"start_ns": 5, "end_ns": 9}) for b in second.blocks]
    apart = second.model_copy(update={"blocks": later})
    assert contradiction(outcome([first, apart]), CELL) is None
    longer = [later[0], later[1].model_copy(update={"count": later[1].count - 1})]
    other = second.model_copy(update={"blocks": longer})
    assert contradiction(outcome([first, other]), CELL) == "its ranks took different steps"


def test_ranks_that_came_differently_far_keep_what_they_have_in_common():
    """Rank 1 was lost after the clean window; rank 0 has another block."""
    long, short = BOTH
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
    failing = further.model_copy(update={"trace_unavailable": "x", "another_rank_left": False})
    assert with_common_steps([failing, short])[0].has_own_reason
    assert with_common_steps([long, short]) == [long, short]
    result = outcome([further, short])
    assert result.status == "ok" and contradiction(result, CELL) is None
