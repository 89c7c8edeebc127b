"""The search for the largest batch: what it finds, how many probes it needs, what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.session.plan import Request
from scalebench.session.plan.max_batch import (
    PRECISION,
    for_max_batch,
    largest_fitting,
    why_too_large,
)
from tests.builders.runs import make_cell, make_result


@given(edge=st.integers(0, 10**6), first=st.integers(1, 10**4))
def test_the_edge_is_found_to_a_sixteenth_with_few_probes(edge, first):
    probes = []

    def fits(batch):
        probes.append(batch)
        return batch <= edge

    found = largest_fitting(fits, first)
    assert found.fits <= edge < found.too_large
    assert found.too_large - found.fits <= max(1, found.fits // PRECISION)
    assert len(probes) == len(set(probes))
    assert len(probes) <= 2 + max(edge, first).bit_length() + 14
    assert max(probes) <= max(first, 2 * edge)


def test_what_contradicts_the_largest_batch_is_refused():
    with pytest.raises(UsageError, match="--scaling strong"):
        for_max_batch(Request(scaling="strong", memory_limit_bytes=1), "cpu")
    with pytest.raises(UsageError, match="--memory-limit 200MB"):
        for_max_batch(Request(), "cpu")
    assert for_max_batch(Request(), "cuda").scaling == "weak"


def cell(size, **changes):
    return make_cell("ddp", size).model_copy(update={"rank_batch": 8, **changes})


def out_of_memory(at):
    return make_result(at).model_copy(update={"status": "oom", "reason": "rank 0: too much"})


def test_more_ranks_that_hold_no_less_are_not_tried():
    reason = why_too_large(cell(4), [out_of_memory(cell(2))])
    assert reason is not None and "N=2 ran out of memory" in reason and "--keep-going" in reason
