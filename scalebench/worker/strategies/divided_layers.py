"""The layers that a tensor plan names: found in the module, checked, watched for their sizes."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from scalebench.spec.workload import Split, TensorPlan
from scalebench.worker.process.failure import Unsupported

KINDS: Mapping[Split, tuple[type[nn.Module], ...]] = {
    "columns": (nn.Linear,),
    "rows": (nn.Linear,),
    "output": (nn.Linear,),
    "vocabulary": (nn.Embedding,),
    "positions": (nn.Embedding,),
    "tokens": (nn.Module,),
    "last": (nn.Module,),
}
"""How a layer is divided → what it has to be."""


def layers_of(module: nn.Module, plan: TensorPlan, ranks: int) -> dict[str, Split]:
    """Return name → split of every layer that a plan names.

    Raises:
        Unsupported: The module has no layer of a name, one of another kind, or one whose divided
            dimension cannot be divided among so many ranks.
    """
    found: dict[str, Split] = {}
    for pattern, split in plan.modules.items():
        if split not in KINDS:
            raise Unsupported(
                f"tensor_plan: {split!r} for {pattern} is no split; choose from {', '.join(KINDS)}"
            )
        names = [name for name, _ in module.named_modules() if _matches(name, pattern)]
        if not names:
            raise Unsupported(f"tensor_plan: the module has no layer named {pattern}")
        for name in names:
            _check(name, module.get_submodule(name), split, ranks)
            found[name] = split
    return found


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _check(name: str, layer: nn.Module, split: Split, ranks: int) -> None:
    if not isinstance(layer, KINDS[split]):
        wanted = " or ".join(kind.__name__ for kind in KINDS[split])
        raise Unsupported(
            f"tensor_plan: {name} is a {type(layer).__name__}, and {split!r} divides a {wanted}"
        )
    divided = {"columns": 0, "output": 0, "vocabulary": 0, "positions": 0, "rows": 1}.get(split)
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
            `scalebench.costmodel.tensor_layers.DividedLayer`, in the order of the calls; empty
            before the first pass.

    Args:
        module: Not yet divided.
        layers: Name → split.
        sequence_parts: Parts in which the sequence comes to layers that work token by token.
    """

    def __init__(
        self, module: nn.Module, layers: Mapping[str, Split], sequence_parts: int = 1
    ) -> None:
        self.sequence_parts = sequence_parts
        self.facts: list[dict[str, Any]] = []
        self._hooks = list(self._watch(module, layers))

    def _watch(self, module: nn.Module, layers: Mapping[str, Split]) -> Iterator[Any]:
        for name, split in layers.items():
            layer = module.get_submodule(name)
            sizes = {"name": name, "split": split} | _sizes(layer)

            def note(_: nn.Module, given: tuple[Any, ...], sizes: dict[str, Any] = sizes) -> None:
                self.facts.append(sizes | self._called_with(given[0], sizes["split"]))

            yield layer.register_forward_pre_hook(note)

    def _called_with(self, given: torch.Tensor, split: Split) -> dict[str, Any]:
        """Return to how many vectors a layer is applied, and whether a gradient goes back."""
        by_index = split in ("vocabulary", "positions")
        width = 1 if by_index else given.shape[-1]
        whole = by_index or split == "rows"
        parts = 1 if whole else self.sequence_parts
        return {
            "vectors": parts * given.numel() // width,
            "width": 0 if by_index else width,
            "input_gradient": given.requires_grad,
        }

    def stop(self) -> None:
        """Watch no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _sizes(layer: nn.Module) -> dict[str, Any]:
    """Return the two dimensions of a layer's matrix, and the elements of all its parameters."""
    weight = getattr(layer, "weight", None)
    outputs, inputs = (0, 0)
    if isinstance(layer, nn.Linear):
        outputs, inputs = weight.shape  # type: ignore[union-attr]
    elif isinstance(layer, nn.Embedding):
        inputs, outputs = weight.shape  # type: ignore[union-attr]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "parameters": [parameter.numel() for parameter in layer.parameters()],
    }
