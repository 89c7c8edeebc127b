"""What ranks play of a step, and how much more its messages took than the link says."""

import pytest

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.rehearsed_step import longer_than_replayed_s, rehearsal_of_step
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import PredictedStep, StepShape
from scalebench.records.probes import RehearsedStep

HIDDEN = CommRequest("all_reduce", 1000, 0.002, 0.010)
AT_ONCE = CommRequest("all_gather", 500, 0.012, 0.012)


def shape(*requests: CommRequest) -> StepShape:
    return StepShape(requests, 0.010, 0.004, 8)


def link(op: str, num_ranks: int, size_bytes: int) -> LinkTime:
    """3 us a byte, whatever the operation."""
    return LinkTime(3e-6 * size_bytes, 0.0, 0.0, (num_ranks,))


def test_what_is_played_is_the_shape_of_the_step() -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), 2)
    assert plan.computing_s == pytest.approx(0.014)
    told = [(o.op, o.size_bytes, o.ready_s, o.needed_s) for o in plan.operations]
    assert told == [tuple(HIDDEN)[:4], tuple(AT_ONCE)[:4]]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ((), "nothing is sent"),
        ((HIDDEN._replace(num_ranks=2),), "fewer ranks"),
        ((HIDDEN._replace(op="coalesced"),), "no collective|not all"),
    ],
)
def test_what_cannot_be_played_is_said(requests: tuple[CommRequest, ...], told: str) -> None:
    with pytest.raises(NoFit, match=told):
        rehearsal_of_step(shape(*requests), 4)


@pytest.mark.parametrize(
    ("exposed_s", "expected_s"),
    [
        # 3 ms of the hidden message fit into 8 ms of work; of the other 1.5 ms nothing is hidden
        ((0.0025, 0.0015, 0.0020), 0.0005),
        ((0.0005,), -0.001),
        ((0.0015,), 0.0),
    ],
)
def test_what_messages_took_longer_is_against_the_replay(
    exposed_s: tuple[float, ...], expected_s: float
) -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), 2)
    played = RehearsedStep(suite="s", case="c", world_size=2, plan=plan, exposed_s=exposed_s)
    assert longer_than_replayed_s(played, link) == pytest.approx(expected_s, abs=1e-9)


def test_a_longer_step_is_longer_at_both_ends_and_never_shorter_than_its_work() -> None:
    predicted = PredictedStep(0.012, 0.011, 0.013, 0.010, 0.002, (), (), ())
    longer = predicted.longer(0.001)
    assert (longer.low_s, longer.step_s, longer.high_s) == pytest.approx((0.012, 0.013, 0.014))
    assert predicted.longer(-0.005).step_s == 0.010


def test_a_step_that_computes_nothing_is_not_played() -> None:
    request = CommRequest("all_reduce", 8, 0.0, 0.0)
    with pytest.raises(NoFit, match="nothing is sent"):
        rehearsal_of_step(StepShape((request,), 0.0, 0.0, 8), 2)


def test_a_message_of_nothing_is_played_as_one_byte_and_all_ranks_may_be_named() -> None:
    empty = CommRequest("all_reduce", 0, 0.001, 0.002, num_ranks=3)
    (operation,) = rehearsal_of_step(shape(empty), 3).operations
    assert operation.size_bytes == 1
