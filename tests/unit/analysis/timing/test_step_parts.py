"""What tracing adds is taken off where it was added: on a GPU off the gaps between kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import attribute
from scalebench.analysis.timing.step_parts import clean_parts
from tests.builders.tracing.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)

KERNELS = (12.0, 8.0, 15.0, 10.0)
"""Of every step, milliseconds: the device takes as long for them whoever looks on."""
TRANSFER = 5.0


def step_of(gaps, stall=0.0, start=0.0):
    """Kernels, a gap before each; then the transfer, and a wait for the next batch."""
    compute, at = [], start
    for length, gap in zip(KERNELS, gaps, strict=True):
        compute.append((at + gap, at + gap + length))
        at += gap + length
    return compute, (at, at + TRANSFER), (at + TRANSFER, at + TRANSFER + stall)


def launch(clean_gaps, traced_gaps, clean_stall=0.0, traced_stall=0.0, device="cuda"):
    """A launch whose traced steps have other gaps than its clean ones, and the same kernels."""
    compute, sent, data = step_of(traced_gaps, traced_stall)
    trace = make_trace(
        [make_operation(*sent)],
        compute,
        steps=[(0, data[1])],
        data=flat([data] * bool(traced_stall)),
    )
    clean = sum(KERNELS) + sum(clean_gaps) + TRANSFER + clean_stall
    result = make_traced_result(make_traced_record(0, trace, clean), case="ddp")
    return attribute(on_gpu(result) if device == "cuda" else result), clean / 1e3


def parts_of(*arguments, **changes):
    found, clean_s = launch(*arguments, **changes)
    return clean_parts(found, 0, clean_s)


gaps = st.lists(st.floats(0.0, 20.0), min_size=4, max_size=4)


@given(gaps, gaps, st.floats(0.0, 10.0))
def test_whatever_tracing_adds_to_the_gaps_the_planted_step_comes_out(clean, added, stall):
    traced = [one + more for one, more in zip(clean, added, strict=True)]
    found = parts_of(clean, traced, clean_stall=stall, traced_stall=stall)
    near = {"abs": 1e-7}  # times of a trace are whole nanoseconds
    assert found["compute"] == pytest.approx(sum(KERNELS) / 1e3, **near)
    assert found["other_idle"] == pytest.approx(sum(clean) / 1e3, **near)
    assert found["data_stall"] == pytest.approx(stall / 1e3, **near)
    assert found["exposed_transfer"] == pytest.approx(TRANSFER / 1e3, **near)
