"""Tensor parallel: the matrices of every layer are divided, and all ranks compute on one batch.

A pair of linear layers is divided first by columns, then by rows (Shoeybi et al. 2019, Megatron-LM,
§3): what stands between the two works on its part alone, and the ranks' results are summed. With
``sequence`` the sum is reduce-scattered along the sequence, and gathered again before the next
layer (Korthikanti et al. 2022). An embedding is divided by the rows of its table: zeros stand for
the tokens of others, and the sum is the whole. With ``loss`` the logits stay divided: the loss
exchanges the largest logit, the sum of exponentials and the target's logit of each token
(``loss_parallel``). What is sent: `scalebench.costmodel.tensor_layers`.

`DTensor` does all of this. A style of ``torch.distributed.tensor.parallel`` says of a layer how its
parameters are divided and in which layout tensors come in and go out; what has to be sent follows.
Which layers are divided how is the workload's own `TensorPlan`.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from scalebench.spec import Tensor
from scalebench.spec.workload import ContextPlan, Split, TensorPlan
from scalebench.worker.process.failure import Unsupported

Plan = TypeVar("Plan", TensorPlan, ContextPlan)

TOKENS = 1
"""Dimension of the sequence in a batch and in activations, ``[samples, tokens, ...]``."""

SPLITS: Mapping[Split, tuple[type[nn.Module], int | None]] = {
    "columns": (nn.Linear, 0),
    "rows": (nn.Linear, 1),
    "output": (nn.Linear, 0),
    "vocabulary": (nn.Embedding, 0),
    "positions": (nn.Embedding, 0),
    "tokens": (nn.Module, None),
    "last": (nn.Module, None),
}
"""How a layer is divided → what it has to be, and which dimension of its matrix is."""


def checked_plan(
    plan: Plan | None, kind: str, why_not: Callable[[Plan, int], str | None], ranks: int
) -> Plan:
    """Return a workload's plan.

    Raises:
        Unsupported: There is none, or so many ranks cannot divide by it.
    """
    if plan is None:
        raise Unsupported(f"{kind} parallel training needs a workload with a {kind}_plan")
    reason = why_not(plan, ranks)
    if reason is not None:
        raise Unsupported(reason)
    return plan


def named(module: nn.Module, pattern: str, plan: str) -> list[str]:
    """Return the names of the modules that a pattern of a plan means; raises Unsupported."""
    wanted = pattern.split(".")
    parts = [(name, name.split(".")) for name, _ in module.named_modules()]
    names = [
        name
        for name, own in parts
        if len(own) == len(wanted) and all(map(fnmatchcase, own, wanted))
    ]
    if not names:
        raise Unsupported(f"{plan}: the module has no layer named {pattern}")
    return names


def layers_of(module: nn.Module, plan: TensorPlan, ranks: int) -> dict[str, Split]:
    """Return name → split of every layer that a plan names.

    Raises:
        Unsupported: The module has no layer of a name, one of another kind, or one whose divided
            dimension cannot be divided among so many ranks.
    """
    found: dict[str, Split] = {}
    for pattern, split in plan.modules.items():
        if split not in SPLITS:
            raise Unsupported(
                f"tensor_plan: {split!r} for {pattern} is no split; choose from {', '.join(SPLITS)}"
            )
        for name in named(module, pattern, "tensor_plan"):
            _check(name, module.get_submodule(name), split, ranks)
            found[name] = split
    return found


def _check(name: str, layer: nn.Module, split: Split, ranks: int) -> None:
    kind, divided = SPLITS[split]
    if not isinstance(layer, kind):
        raise Unsupported(
            f"tensor_plan: {name} is a {type(layer).__name__}, and {split!r} divides a "
            f"{kind.__name__}"
        )
    if divided is None:
        return
    weight: Any = layer.weight
    if weight.shape[divided] % ranks:
        raise Unsupported(
            f"tensor_plan: the {weight.shape[divided]} {'inputs' if divided else 'rows'} of {name} "
            f"cannot be divided among {ranks} ranks"
        )


class LayerSizes:
    """What the layers are called with in the first forward pass: facts that predictions rest on.

    Made before the layers are divided, so that inputs are seen as they come in.

    Attributes:
        facts: One dict per call with the fields of
            `scalebench.costmodel.tensor_layers.DividedLayer`, in the order of the calls;
            empty before the first pass.

    ``module`` is not yet divided; ``layers``: name → split. ``sequence_parts``: parts in which the
    sequence comes to layers that work token by token.
    """

    def __init__(
        self, module: nn.Module, layers: Mapping[str, Split], sequence_parts: int = 1
    ) -> None:
        self.sequence_parts = sequence_parts
        self.facts: list[dict[str, Any]] = []
        self._hooks = [
            self._watch(name, module.get_submodule(name), split) for name, split in layers.items()
        ]

    def _watch(self, name: str, layer: nn.Module, split: Split) -> Any:
        outputs = inputs = 0
        if isinstance(layer, nn.Linear):
            outputs, inputs = layer.weight.shape
        elif isinstance(layer, nn.Embedding):
            inputs, outputs = layer.weight.shape
        sizes = {
            "name": name,
            "split": split,
            "inputs": inputs,
            "outputs": outputs,
            "parameters": [parameter.numel() for parameter in layer.parameters()],
        }
        by_index = split in ("vocabulary", "positions")
        parts = 1 if by_index or split == "rows" else self.sequence_parts

        def note(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            width = 1 if by_index else given[0].shape[-1]
            self.facts.append(
                sizes
                | {
                    "vectors": parts * given[0].numel() // width,
                    "width": 0 if by_index else width,
                    "input_gradient": given[0].requires_grad,
                }
            )

        return layer.register_forward_pre_hook(note)

    def stop(self) -> None:
        """Watch no more."""
        for hook in self._hooks:
            hook.remove()


def divide(
    module: nn.Module, layers: Mapping[str, Split], strategy: Tensor, mesh: DeviceMesh
) -> None:
    """Divide the layers of a module over a mesh, in place.

    Every rank has the same parameters and keeps its part: nothing is sent.
    """
    for name, split in layers.items():
        for style in styles(split, strategy):
            parallelize_module(module.get_submodule(name), mesh, style, src_data_rank=None)


def hand_on_logits(module: nn.Module, strategy: Tensor, mesh: DeviceMesh) -> None:
    """Have a module return its divided logits as they are, or gathered."""
    handed_on = PrepareModuleOutput(
        output_layouts=Shard(-1),
        desired_output_layouts=Shard(-1) if strategy.loss else Replicate(),
        use_local_output=not strategy.loss,
    )
    parallelize_module(module, mesh, handed_on)


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


def alike(module: nn.Module) -> Any:
    """Return the parameters in groups of one mesh: an optimizer takes one kind at once."""
    groups: dict[tuple[str, ...], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        key = () if mesh is None else mesh.mesh_dim_names or ("",)
        groups.setdefault(key, []).append(parameter)
    return [{"params": group} for group in groups.values()]


def sum_together(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Sum each of several tensors over a group (None: all ranks), in place, in one all-reduce."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def complete_parts(parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """Sum what the ranks of a tensor group have of one gradient; keep of each the own part.

    A parameter that all ranks hold, and each used for its part of the tokens, has a part of its
    gradient on each of them. Of a gradient that every rank has whole, as an embedding's, the
    parameter's own part is kept.
    """
    parts = [parameter for parameter in parameters if is_partial(parameter.grad)]
    if mesh.size() > 1:
        sum_together([local(p.grad) for p in parts], mesh.get_group())
    for parameter in parts:
        summed = local(parameter.grad)
        parameter.grad = DTensor.from_local(summed, mesh, [Replicate()], run_check=False)
    for parameter in parameters:
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
