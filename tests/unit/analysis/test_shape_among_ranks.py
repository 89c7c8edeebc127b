"""Steps predicted from several ranks, where one sends nothing: every number is known.

Each step takes 100 ms on two ranks. The slower one computes 0 to 20, gathers until 30, computes 30
to 70, scatters until 90, and computes for the last 10 ms: 70 ms of computation.
"""

import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.shapes import NoShape, shape_among_ranks
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_result
from tests.builders.tracing.traced import make_operation, make_trace, make_traced_record

BYTES = 1_000_000
TARGET = ScriptTarget(name="train", program="train.py")


def cell(n, repeat=0, **changes):
    fields = {"backend": "gloo", "workload": TARGET, "scaling": "weak", **changes}
    return make_cell("script", n, repeat, Script(), **fields)


def sent(kind, start, end, phase, ordinal=0, size=2, **changes):
    asked = {"enqueued_ns": round(start * 1e6), "num_bytes": BYTES, "group_size": size}
    fields = {"kind": kind, "name": f"gloo:{kind}", "phase": phase, **asked, **changes}
    return make_operation(start, end, ordinal=ordinal, **fields)


def gathers(end=30, scatter=70, size=2, **changes):
    return [
        sent("all_gather", 20, end, "forward", size=size, **changes),
        sent("reduce_scatter", scatter, 90, "backward", size=size),
    ]


SLOW = make_trace(gathers(), [(0, 20), (30, 70), (90, 100)])


def launched(n, traces, repeat=0, clean=100, facts=None, **changes):
    ranks = [
        make_traced_record(rank, trace, clean=clean, facts=facts or {}, samples_per_step=32)
        for rank, trace in enumerate(traces)
    ]
    return make_result(cell(n, repeat, **changes), ranks=ranks)


def shape(*traces, **changes):
    return shape_among_ranks([attribute(launched(len(traces), traces, **changes))])


@pytest.mark.parametrize(
    ("trace", "facts", "why"),
    [
        (make_trace([], [(0, 100)]), {}, "no communication at N=2"),
        (make_trace([sent("send", 1, 2, "forward")]), {}, "divides the model itself"),
        (make_trace([sent("all_gather", 1, 2, "forward", size=1)]), {}, "in groups of 1"),
        (
            make_trace([sent("all_gather", 1, 2, "forward", num_bytes=None)]),
            {},
            "does not say how much gloo:all_gather sends",
        ),
        (SLOW, {"wrappers": [{"kind": "DTensor"}]}, "divides the model itself"),
        (SLOW, {"wrappers": [{"kind": "_PipelineSchedule"}]}, "divides the model itself"),
        (
            SLOW,
            {"groups": [{"name": "Megatron tensor parallel", "ranks": 2, "count": 1}]},
            "divides the model itself",
        ),
    ],
)
def test_a_step_that_does_not_tell_other_sizes_says_why(trace, facts, why):
    traces = [trace, trace]
    if not trace.operations:  # one rank that sends lets the launch be looked into
        traces = [make_trace([sent("barrier", 1, 2, "forward", num_bytes=None)])] * 2
    with pytest.raises(NoShape, match=why):
        shape(*traces, facts=facts)
