"""What a pipeline's layers cost: counted on tensors without values, before anything is timed."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from scalebench.costmodel.pipeline_step import Layers, TiedParameter
from scalebench.spec import Pipeline
from scalebench.worker.batches import split
from scalebench.worker.flops import count_flops
from scalebench.worker.pipelining.loss import inputs_of
from scalebench.workload import Workload


def count_layers(strategy: Pipeline, workload: Workload) -> Layers:
    """Return FLOPs, output bytes and shared parameters of a workload's layers.

    FLOPs are those of a microbatch, forward. Where the layers cannot run on tensors without values,
    or torch's counter knows none of the operators, the number of parameters stands for the cost;
    where they cannot run, their outputs' sizes are not known, and the tuple of them is empty.
    """
    by_size = tuple(float(sum(p.numel() for p in layer.parameters())) for layer in workload.layers)
    batch = getattr(workload.batches, "first", None)
    batch = next(iter(workload.batches)) if batch is None else batch
    passed: Any = inputs_of(workload.loss, split(batch, strategy.microbatches)[0])
    flops, output_bytes = [], []
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            passed = tuple(mode.from_tensor(one) for one in passed)
            for layer in workload.layers:
                with count_flops() as counted:
                    passed = (layer(*passed),)
                flops.append(float(counted.total))
                output_bytes.append(passed[0].numel() * passed[0].element_size())
    except Exception:  # a layer may do what tensors without values cannot
        return Layers(by_size, (), tied_parameters(workload))
    costs = tuple(flops) if sum(flops) else by_size
    return Layers(costs, tuple(output_bytes), tied_parameters(workload))


def tied_parameters(workload: Workload) -> tuple[TiedParameter, ...]:
    """Return the parameters that several layers share."""
    layers_of: dict[int, list[int]] = {}
    found: dict[int, torch.nn.Parameter] = {}
    for number, layer in enumerate(workload.layers):
        for parameter in layer.parameters():
            layers_of.setdefault(id(parameter), []).append(number)
            found[id(parameter)] = parameter
    return tuple(
        TiedParameter(tuple(numbers), found[key].numel() * found[key].element_size())
        for key, numbers in layers_of.items()
        if len(numbers) > 1
    )
