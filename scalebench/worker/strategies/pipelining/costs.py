"""What a pipeline's layers cost, before anything is trained: counted, or timed one by one."""

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from scalebench.costmodel.pipelines.stage_split import Layers, TiedParameter
from scalebench.spec import Pipeline
from scalebench.spec.workload import Workload
from scalebench.worker.strategies.execution import precision
from scalebench.worker.strategies.pipelining.schedule import inputs_of
from scalebench.worker.workloads.batches import split, to_device
from scalebench.worker.workloads.flops import count_flops

TIMINGS = 3
"""Of each layer, after one that does not count."""


def count_layers(strategy: Pipeline, workload: Workload, device: torch.device) -> Layers:
    """Return FLOPs, bytes and shared parameters of a workload's layers.

    FLOPs, outputs and what is kept for backward are those of a microbatch, forward. Where the
    layers cannot run on tensors without values, or torch's counter knows none of the operators, the
    number of parameters stands for the cost; where they cannot run, nothing is known of their
    outputs and of what they keep, and those tuples are empty.
    """
    parameter_bytes = tuple(
        sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in workload.layers
    )
    counted = Layers(
        costs=tuple(float(sum(p.numel() for p in layer.parameters())) for layer in workload.layers),
        output_bytes=(),
        tied=tied_parameters(workload),
        parameter_bytes=parameter_bytes,
    )
    try:
        flops, output_bytes, kept_bytes = _run_without_values(strategy, workload, device)
    except Exception:  # a layer may do what tensors without values cannot
        return counted
    costs = tuple(flops) if sum(flops) else counted.costs
    return replace(
        counted, costs=costs, output_bytes=tuple(output_bytes), kept_bytes=tuple(kept_bytes)
    )


def _run_without_values(
    strategy: Pipeline, workload: Workload, device: torch.device
) -> tuple[list[float], list[int], list[int]]:
    """Return FLOPs, bytes of the output and bytes kept, of each layer's forward pass."""
    passed: Any = inputs_of(workload.loss, _microbatch(strategy, workload))
    flops, output_bytes, kept_bytes = [], [], []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = passed = tuple(mode.from_tensor(one) for one in passed)
        for layer in workload.layers:
            kept = Kept(mode, layer, inputs)
            with count_flops() as counted, kept.counted(), precision(strategy, device):
                output = layer(*passed)
            flops.append(float(counted.total))
            output_bytes.append(output.numel() * output.element_size())
            kept_bytes.append(kept.num_bytes)
            passed = (output.detach().requires_grad_(output.is_floating_point()),)
    return flops, output_bytes, kept_bytes


class Kept:
    """What a layer's forward pass keeps for its backward pass, on tensors without values.

    A storage counts once, whichever views of it are kept. The layer's own parameters and buffers
    do not count, nor does what is there anyhow: the batch.
    """

    def __init__(
        self, mode: FakeTensorMode, layer: torch.nn.Module, batch: Sequence[torch.Tensor]
    ) -> None:
        own = [mode.from_tensor(one) for one in (*layer.parameters(), *layer.buffers())]
        self.there_anyhow = [*own, *batch]
        self.tensors: list[torch.Tensor] = []

    def counted(self) -> saved_tensors_hooks:
        """Return a context in which what is kept is counted."""
        return saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):  # others are parameters as they are
            self.tensors.append(tensor)
        return tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept."""
        anyhow = {one.untyped_storage()._cdata for one in self.there_anyhow}
        sizes = {s._cdata: s.nbytes() for s in (t.untyped_storage() for t in self.tensors)}
        return sum(size for storage, size in sizes.items() if storage not in anyhow)


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
