"""From a workload's layers to the stages of a rank: cut, kept or dropped, tied together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalebench.costmodel.pipelines.stage_split import Layers, layers_of_stages
from scalebench.spec import Pipeline
from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import whole
from scalebench.worker.strategies.execution import precision, recompute_blocks
from scalebench.worker.strategies.pipelining.costs import count_layers, time_layers
from scalebench.worker.strategies.pipelining.layout import Layout


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
