"""The workload that waits instead of computing; real torch, one process."""

import time

import torch

from scalebench.spec.presets import resolve_workload
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import traced
from scalebench.worker.workloads.batches import concatenate
from scalebench.worker.workloads.paced import Stage
from tests.builders.paced import CPU, build, gradients_of


def test_it_has_the_parameters_that_the_catalog_says():
    shape = resolve_workload("paced", "cpu")
    workload = build(shape=shape)
    assert sum(p.numel() for p in workload.module.parameters()) == shape.num_parameters
    assert len(workload.blocks) == shape.stages


def test_waiting_leaves_the_processor_to_others():
    workload = build()
    batch = next(iter(workload.batches))
    gradients_of(workload, batch)
    used = time.process_time()
    gradients_of(workload, batch)
    assert time.process_time() - used < 0.048 / 2


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


def test_the_mean_over_ranks_is_the_gradient_of_the_whole_batch():
    ranks = [build(rank, 2) for rank in range(2)]
    batches = [next(iter(workload.batches)) for workload in ranks]
    pieces = [gradients_of(w, b) for w, b in zip(ranks, batches, strict=True)]
    whole = gradients_of(build(), concatenate(batches))
    assert any((a - b).abs().max() > 1e-6 for a, b in zip(*pieces, strict=True))
    for first, second, all_ in zip(*pieces, whole, strict=True):
        torch.testing.assert_close((first + second) / 2, all_, rtol=1e-5, atol=1e-9)


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
