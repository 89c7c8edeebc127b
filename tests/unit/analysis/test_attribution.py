"""When a traced launch can be attributed, and what is said where it cannot."""

import pytest

from scalebench.analysis.attribution import attribute, why_not
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result


def launch(*left_out):
    """Two ranks that reduce once, without the blocks of some phases."""
    record = [make_traced_record(r, make_trace([make_operation(50, 75)])) for r in range(2)]
    kept = [[b for b in one.blocks if b.phase not in left_out] for one in record]
    return make_traced_result(
        *(one.model_copy(update={"blocks": b}) for one, b in zip(record, kept, strict=True))
    )


@pytest.mark.parametrize("left_out", [("paired",), ("bare",), ("paired", "bare")])
def test_without_either_of_the_steps_beside_the_traced_ones_there_is_no_attribution(left_out):
    assert why_not(launch(*left_out)) == "there are no clean steps next to the traced ones"
    assert attribute(launch(*left_out)) is None


def test_with_both_there_is_one():
    assert why_not(launch()) is None and attribute(launch()) is not None
