"""From a workload's layers, and what each costs, to a rank's stages: cut, kept, tied together."""

import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from scalebench.costmodel.stage_split import Layers, TiedParameter, layers_of_stages
from scalebench.grouping import by_key
from scalebench.spec import Pipeline
from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import whole
from scalebench.worker.strategies.execution import precision, recompute_blocks
from scalebench.worker.strategies.pipelining import Layout, inputs_of
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
    layers_of = by_key(
        (p, n) for n, layer in enumerate(workload.layers) for p in layer.parameters()
    )
    return tuple(
        TiedParameter(tuple(numbers), parameter.numel() * parameter.element_size())
        for parameter, numbers in layers_of.items()
        if len(numbers) > 1
    )


class Stage(nn.Sequential):
    """Consecutive layers, in the precision that the strategy asks for."""

    def __init__(self, layers: Sequence[nn.Module], strategy: Pipeline, device: torch.device):
        super().__init__(*layers)
        self.strategy, self.device = strategy, device

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layers; the first may take several tensors."""
        with precision(self.strategy, self.device):
            first, *others = self
            output = first(*inputs)
            for layer in others:
                output = layer(output)
        return output  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Placed:
    """A parameter of the whole model, and the stages that use it."""

    name: str
    like: torch.Tensor
    stages: tuple[int, ...]


class Stages:
    """This rank's stages, and what it has to know of all the others.

    What of ``workload`` belongs to other ranks loses its memory.

    Raises:
        Unsupported: The workload names no layers, has fewer than stages, or a stage of this rank
            would have no parameters.
    """

    def __init__(
        self, strategy: Pipeline, workload: Workload, layout: Layout, device: torch.device
    ) -> None:
        self.layout = layout
        parts, self.layers = cut(strategy, workload, layout.num_stages, device)
        self.modules = {
            index: Stage(parts[index], strategy, device).to(device) for index in layout.own
        }
        used = [{id(p) for layer in part for p in layer.parameters()} for part in parts]
        self.parameters = {
            name: Placed(
                name,
                torch.empty_like(parameter, device="meta"),
                tuple(index for index, there in enumerate(used) if id(parameter) in there),
            )
            for name, parameter in workload.module.named_parameters()
        }
        own = {id(p): p for module in self.modules.values() for p in module.parameters()}
        self.own = {
            name: own[id(parameter)]
            for name, parameter in workload.module.named_parameters()
            if id(parameter) in own
        }
        _check(self.parameters.values(), layout, bool(self.own))
        self.tied = self._groups_of_tied()
        release(workload.module, set(own))
        if strategy.compile:
            for module in self.modules.values():
                module.compile()

    def _groups_of_tied(self) -> dict[str, dist.ProcessGroup]:
        """Return the group of ranks that hold a parameter, for each that several hold."""
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        found = {}
        self.tied_groups: dict[str, int] = {}
        for placed in self.parameters.values():
            places = self.layout.places_of(placed.stages)
            if len(places) == 1:
                continue
            if places not in groups:
                groups[places] = self.layout.new_group(places)
            group = groups[places]
            if group is not None:
                found[placed.name] = group
                self.tied_groups[f"pipeline of rank {self.layout.first_rank}, tied {places}"] = len(
                    places
                )
        return found

    def find_own(self, module: nn.Module) -> None:
        """Look for this rank's parameters again, after others have taken the place of some."""
        here = set(self.layout.own)
        self.own = {
            name: parameter
            for name, parameter in module.named_parameters()
            if here.intersection(self.parameters[name].stages)
        }

    def gradient_of(self, name: str) -> torch.Tensor:
        """Return the gradient of a parameter of this rank; zeros if it took no part."""
        parameter = self.own[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def gradients(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and gradient of all parameters of the model, each sent by a rank that has it.

        All ranks of the pipeline take part, and those among which a stage is divided.
        """
        for name, placed in self.parameters.items():
            if name in self.own:
                gradient = whole(self.gradient_of(name)).contiguous()
            else:
                gradient = torch.zeros_like(placed.like, device=device)
            if self.layout.num_ranks > 1:
                source = self.layout.rank_of[placed.stages[0]]
                dist.broadcast(gradient, src=source, group=self.layout.pipeline)
            yield name, gradient


def _check(placed: Any, layout: Layout, has_parameters: bool) -> None:
    lost = next((one.name for one in placed if not one.stages), None)
    if lost is not None:
        raise Unsupported(f"the workload's layers leave out the parameter {lost} of its module")
    if not has_parameters:
        raise Unsupported(
            f"the stages {layout.own} have no parameters; give fewer stages, or another split"
        )


def cut(
    strategy: Pipeline, workload: Workload, num_stages: int, device: torch.device
) -> tuple[list[list[nn.Module]], Layers]:
    """Return the layers of each stage, and what all of them cost.

    Raises:
        Unsupported: There are fewer layers than stages, or the workload names none.
    """
    layers = list(workload.layers)
    if not layers:
        raise Unsupported(
            "a pipeline needs a workload that names its layers: Workload(layers=[...]), modules "
            "that are applied one after the other"
        )
    recompute_blocks(workload, strategy)
    counted = count_layers(strategy, workload, device)
    if strategy.split == "measured":
        counted = replace(counted, costs=time_layers(strategy, workload, device))
    try:
        stages = layers_of_stages(strategy.split, counted.costs, num_stages)
    except ValueError as reason:
        raise Unsupported(str(reason)) from reason
    return [layers[begin:end] for begin, end in stages], counted


def release(module: nn.Module, kept: set[int]) -> None:
    """Take the memory from the parameters and buffers of a module but those to be kept.

    ``module`` stays what it is, with parameters of the same shapes on the meta device. ``kept``:
    ``id`` of the parameters that stay. Modules that have any stay whole.
    """
    for part in module.modules():
        parameters = [id(p) for p in part.parameters(recurse=False)]
        if parameters and not kept.intersection(parameters):
            part._apply(lambda t: torch.empty_like(t, device="meta"), recurse=False)
