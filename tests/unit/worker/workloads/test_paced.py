"""The workload that waits instead of computing; real torch, one process."""

import torch

from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import traced
from scalebench.worker.workloads.paced import Stage
from tests.builders.paced import CPU, build, gradients_of


def test_gradients_are_those_of_the_formula():
    """Held against autograd's own derivative of ``x·(1 + w·d)``, stage after stage."""
    workload = build()
    batch = next(iter(workload.batches))
    ours = gradients_of(workload, batch)
    weights = [p.detach().clone().requires_grad_() for p in workload.module.parameters()]
    out = batch[0]
    for stage, weight in zip(workload.blocks, weights, strict=True):
        assert isinstance(stage, Stage)
        out = out * (1 + (weight * stage.pattern).sum())
    ((out - batch[1]) ** 2).mean().backward()
    for mine, weight in zip(ours, weights, strict=True):
        torch.testing.assert_close(mine, weight.grad)
        assert mine.ne(0).all()


def test_a_trace_counts_the_waiting_as_computation():
    workload = build()
    batch = next(iter(workload.batches))
    with traced(CPU) as capture:
        for _ in range(3):
            with capture.step():
                gradients_of(workload, batch)
    trace = trace_record([capture])
    spans = list(zip(trace.compute[::2], trace.compute[1::2], strict=True))
    computing_s = sum(end - start for start, end in spans) / 1e9
    assert computing_s >= 2 * 0.048  # the first step of a block does not count
    steps_s = sum(end - start for start, end in trace.steps) / 1e9
    assert computing_s <= steps_s
