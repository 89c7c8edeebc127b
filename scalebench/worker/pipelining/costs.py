"""What a pipeline's layers cost, before anything is trained: counted, or timed one by one."""

import copy
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from scalebench.costmodel.layers import Layers, TiedParameter
from scalebench.spec import Pipeline
from scalebench.worker.batches import split, to_device
from scalebench.worker.execution import precision
from scalebench.worker.flops import count_flops
from scalebench.worker.pipelining.loss import inputs_of
from scalebench.workload import Workload

TIMINGS = 3
"""Of each layer, after one that does not count."""


def count_layers(strategy: Pipeline, workload: Workload) -> Layers:
    """Return FLOPs, output bytes and shared parameters of a workload's layers.

    FLOPs are those of a microbatch, forward. Where the layers cannot run on tensors without values,
    or torch's counter knows none of the operators, the number of parameters stands for the cost;
    where they cannot run, their outputs' sizes are not known, and the tuple of them is empty.
    """
    by_size = tuple(float(sum(p.numel() for p in layer.parameters())) for layer in workload.layers)
    passed: Any = inputs_of(workload.loss, _microbatch(strategy, workload))
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


def time_layers(strategy: Pipeline, workload: Workload, device: torch.device) -> tuple[float, ...]:
    """Return what forward and backward of each layer take on a microbatch, seconds.

    Every rank times a copy of each layer by itself, the median of a few times; what rank 0 found
    holds for all, so that all cut alike.
    """
    passed: Any = to_device(inputs_of(workload.loss, _microbatch(strategy, workload)), device)
    found = []
    for layer in workload.layers:
        seconds, passed = _timed(copy.deepcopy(layer).to(device), passed, strategy, device)
        found.append(seconds)
    times = torch.tensor(found, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.broadcast(times, src=0)
    return tuple(times.tolist())


def _timed(
    layer: torch.nn.Module, inputs: Any, strategy: Pipeline, device: torch.device
) -> tuple[float, tuple[torch.Tensor]]:
    """Return the median time of a layer's forward and backward, and its output."""
    times = []
    for _ in range(1 + TIMINGS):
        given = tuple(one.detach().requires_grad_(one.is_floating_point()) for one in inputs)
        _wait(device)
        began = time.perf_counter()
        with precision(strategy, device):
            output = layer(*given)
        if output.requires_grad:
            output.float().sum().backward()
        _wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]), (output.detach(),)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _microbatch(strategy: Pipeline, workload: Workload) -> Any:
    batch = getattr(workload.batches, "first", None)
    batch = next(iter(workload.batches)) if batch is None else batch
    return split(batch, strategy.microbatches)[0]


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
