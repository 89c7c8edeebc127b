import pytest

from scalebench.costmodel.compressed_step import with_messages
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape


def shape(*requests):
    return StepShape(tuple(requests), 0.1, 0.02, 32, {16: 0.07})


def test_gathered_messages_grow_with_the_ranks_and_so_does_their_decoding():
    one = shape(CommRequest("all_gather", 100, 0.05, 0.1), CommRequest("all_reduce", 8, 0.1, 0.1))
    four = with_messages(one, 4, decode_s=0.01)
    assert [r.size_bytes for r in four.requests] == [400, 8]
    assert four.computing_s == pytest.approx(one.computing_s + 3 * 0.01)
    assert four.computing_of(16) == pytest.approx(0.07 + 3 * 0.01)
    assert with_messages(one, 1, decode_s=0.01) == one


def test_what_is_all_reduced_stays_as_it_is():
    one = shape(CommRequest("all_reduce", 100, 0.05, 0.1))
    assert with_messages(one, 4, decode_s=0.01) is one
