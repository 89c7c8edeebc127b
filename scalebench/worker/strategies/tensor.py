"""Tensor parallel: the matrices of every layer are divided, and all ranks compute on one batch.

A pair of linear layers is divided first by columns, then by rows (Shoeybi et al. 2019, Megatron-LM,
§3). The first needs no communication: each rank computes its part of the outputs, and what stands
between the two (GELU, a part of the attention heads) works on that part alone. The second computes
with its part of the inputs, and the ranks' results are summed: one all-reduce in forward, and in
backward one more for the gradient of the first layer's input. A block of a transformer has two such
pairs, attention and MLP: four all-reduces of the activations in a step.

Between the pairs all ranks do the same: normalise, add to the residual stream. With ``sequence``
each rank does it for its part of the tokens (Korthikanti et al. 2022): the sum is reduce-scattered
along the sequence, and gathered again before the next layer. The bytes are the same, the
activations in between are divided.

An embedding is divided by the rows of its table: a rank looks up the tokens that it has, zeros for
the others, and the sum is the whole. With ``loss`` the logits stay divided, too: the loss exchanges
the largest logit, the sum of exponentials and the target's logit of each token (``loss_parallel``)
where all logits would be gathered.

`DTensor` does all of this. A style of ``torch.distributed.tensor.parallel`` says of a layer how its
parameters are divided and in which layout tensors come in and go out; what has to be sent follows.
Which layers are divided how is the workload's own `TensorPlan`.

With more ranks than ``size`` there are several such groups, each with its part of the global batch;
their gradients are averaged after the backward pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from scalebench.spec import Tensor
from scalebench.spec.workload import Split, TensorPlan, Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, named_gradients, on_axis
from scalebench.worker.strategies.divided_layers import LayerSizes, layers_of
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_blocks
from scalebench.worker.workloads.batches import num_samples

TOKENS = 1
"""Dimension of the sequence in activations, ``[batch, tokens, width]``."""


class TensorTraining(Training):
    """The model, its layers divided by the workload's plan.

    Attributes:
        outer: The dimension of the mesh along which ranks have different samples.
    """

    outer = "data"
    strategy: Tensor

    def __init__(self, strategy: Tensor, workload: Workload, context: RankContext) -> None:
        self.strategy, self.device, self.loss = strategy, context.device, workload.loss
        self.mesh = device_mesh(strategy, context, self.outer)
        mesh, size = self.mesh["tensor"], self.mesh["tensor"].size()
        plan = checked_plan(workload, strategy, size)
        # The module as a whole cannot be compiled: the hooks of its own result are no graph.
        self.module = prepare_blocks(workload, strategy).to(context.device)
        layers = layers_of(self.module, plan, size)
        self.sizes = LayerSizes(self.module, layers, size if strategy.sequence else 1)
        divide(self.module, layers, strategy, mesh)
        self.wrap(workload)
        self.axes = axes_of_mesh(self.mesh)
        self.facts: dict[str, Any] = {}
        self.divides_logits = plan.divides_logits
        if plan.divides_logits:
            hand_on_logits(self.module, strategy, mesh)
        self.optimizer = make_optimizer(workload, alike(self.module))

    def wrap(self, workload: Workload) -> None:
        """Do to the divided layers what else a strategy does; here nothing."""

    def step(self, batch: Any) -> torch.Tensor:
        """Train on the group's batch; what the ranks exchange happens in hooks of the layers."""
        self.optimizer.zero_grad()
        with self.dividing_the_loss():
            with precision(self.strategy, self.device):
                loss = self.loss(self.module, batch)
            loss.backward()
        self.complete_gradients()
        self.optimizer.step()
        if not self.facts:
            self.facts = self.first_facts(num_samples(batch))
        return whole(loss.detach())

    def first_facts(self, samples: int) -> dict[str, Any]:
        """Return what the first step has shown of the layers."""
        self.sizes.stop()
        return {
            "divided_layers": self.sizes.facts,
            "divided_samples": samples,
            "divided_logits": self.divides_logits,
            "parameters": [[p.numel(), is_divided(p)] for p in self.module.parameters()],
        }

    def dividing_the_loss(self) -> AbstractContextManager[None]:
        """Return the context in which cross entropy works on divided logits."""
        return loss_parallel() if self.strategy.loss else nullcontext()

    def complete_gradients(self) -> None:
        """Sum what the ranks of a group have of one gradient; average over the groups.

        A parameter that all ranks hold, and each used for its part of the tokens, has a part of
        its gradient on each of them.
        """
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        complete_parts(parameters, self.mesh["tensor"])
        data = self.mesh[self.outer]
        if data.size() > 1:
            gradients = [local(p.grad) for p in parameters]
            with on_axis(self.outer):
                sum_together(gradients, data.get_group())
            for gradient in gradients:
                gradient /= data.size()

    def collective_groups(self) -> dict[str, int]:
        """Return name and size of the groups that gather: those along the tensor dimension."""
        return {"tensor": self.mesh["tensor"].size()}

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the gradients of the last step, one after the other, on every rank."""
        for name, gradient in named_gradients(self.module):
            yield name, whole(gradient)


def device_mesh(strategy: Tensor, context: RankContext, outer: str) -> DeviceMesh:
    """Return the ranks in rows: each row is a group that divides the layers, neighbours in it."""
    world_size = context.cell.world_size
    size = strategy.ranks_per_group(world_size)
    shape = (world_size // size, size)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=(outer, "tensor"))


def divide(
    module: torch.nn.Module, layers: Mapping[str, Split], strategy: Tensor, mesh: DeviceMesh
) -> None:
    """Divide the layers of a module over a mesh, in place.

    Every rank has the same parameters and keeps its part: nothing is sent.
    """
    for name, split in layers.items():
        for style in styles(split, strategy):
            parallelize_module(module.get_submodule(name), mesh, style, src_data_rank=None)


def hand_on_logits(module: torch.nn.Module, strategy: Tensor, mesh: DeviceMesh) -> None:
    """Have a module return its divided logits as they are, or gathered."""
    handed_on = PrepareModuleOutput(
        output_layouts=Shard(-1),
        desired_output_layouts=Shard(-1) if strategy.loss else Replicate(),
        use_local_output=not strategy.loss,
    )
    parallelize_module(module, mesh, handed_on)


def axes_of_mesh(mesh: DeviceMesh) -> dict[str, list[int]]:
    """Return dimension → ranks of this rank's group along it; the tensor dimension first.

    That one is there with a single rank, too: `DTensor` asks for operations along it all the same.
    """
    inside_out = reversed(mesh.mesh_dim_names or ())
    groups = {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in inside_out}
    return {axis: ranks for axis, ranks in groups.items() if len(ranks) > 1 or axis == "tensor"}


def checked_plan(workload: Workload, strategy: Tensor, ranks: int) -> TensorPlan:
    """Return the workload's plan.

    Raises:
        Unsupported: There is none, or it does not have what is asked for.
    """
    plan = workload.tensor_plan
    if plan is None:
        raise Unsupported("tensor parallel training needs a workload with a tensor_plan")
    reason = strategy.why_not_plan(plan, ranks)
    if reason is not None:
        raise Unsupported(reason)
    return plan


def styles(split: Split, strategy: Tensor) -> list[ParallelStyle]:
    """Return torch's styles for a layer, one after the other."""
    between = Shard(TOKENS) if strategy.sequence else Replicate()  # of activations between pairs
    if split == "columns":
        return [ColwiseParallel(input_layouts=between)]
    if split == "rows":
        return [RowwiseParallel(output_layouts=between)]
    if split == "output":
        return [ColwiseParallel(input_layouts=between, use_local_output=False)]
    if split == "vocabulary":
        return [RowwiseParallel(input_layouts=Replicate(), output_layouts=between)]
    if split == "positions":
        if not strategy.sequence:
            return []
        return [RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))]
    by_token: list[ParallelStyle] = []
    if strategy.sequence:
        by_token = [SequenceParallel(use_local_output=split == "tokens")]
    if split == "tokens":
        return by_token
    for_the_output = PrepareModuleOutput(
        output_layouts=between, desired_output_layouts=Replicate(), use_local_output=False
    )
    return [*by_token, for_the_output]


def alike(module: torch.nn.Module) -> Any:
    """Return the parameters in groups of one mesh: an optimizer takes one kind at once."""
    groups: dict[tuple[str, ...], list[torch.nn.Parameter]] = {}
    for parameter in module.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(() if mesh is None else mesh.mesh_dim_names or ("",), []).append(
            parameter
        )
    return [{"params": group} for group in groups.values()]


def sum_together(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Sum each of several tensors over a group (None: all ranks), in place, in one all-reduce."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def complete_parts(parameters: Sequence[torch.nn.Parameter], mesh: DeviceMesh) -> None:
    """Sum what the ranks of a tensor group have of one gradient; keep of each the own part."""
    parts = [p for p in parameters if is_partial(p.grad)]
    if mesh.size() > 1:
        sum_together([local(p.grad) for p in parts], mesh.get_group())
    for parameter in parts:
        gradient = local(parameter.grad)
        parameter.grad = DTensor.from_local(gradient, mesh, [Replicate()], run_check=False)
    for parameter in parameters:
        keep_own_part(parameter)


def keep_own_part(parameter: torch.nn.Parameter) -> None:
    """Keep of a gradient that every rank has whole, as an embedding's, the parameter's own part."""
    gradient: Any = parameter.grad
    if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def is_partial(tensor: torch.Tensor | None) -> bool:
    """Tell whether each rank holds a summand of a tensor."""
    return isinstance(tensor, DTensor) and any(p.is_partial() for p in tensor.placements)


def is_divided(tensor: torch.Tensor) -> bool:
    """Tell whether the ranks hold different parts of a tensor."""
    return isinstance(tensor, DTensor) and any(p.is_shard() for p in tensor.placements)


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a divided tensor, another tensor as it is."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of a divided one; every rank takes part in gathering it."""
    if not isinstance(tensor, DTensor):
        return tensor
    full: torch.Tensor = tensor.full_tensor()
    return full
