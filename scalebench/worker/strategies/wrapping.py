"""Which parts of a module become groups of parameters that are gathered together."""

from collections.abc import Sequence

from torch import nn


def modules_of_at_least(min_num_params: int, module: nn.Module) -> list[nn.Module]:
    """Return the smallest modules with so many parameters, those of inner ones not counted.

    Inner modules come before outer ones, otherwise they stand in the order of the model; the
    module itself is never among them. A group is gathered when its own forward runs, so what may
    be read from outside of it belongs to its reader: embeddings, whose matrix often is the
    output's too, containers, which have no forward, and modules that share a parameter with
    another.
    """
    shared = _shared_parameters(module)
    found: list[nn.Module] = []
    _collect(module, min_num_params, shared, found)
    return [one for one in found if one is not module]


def _collect(
    module: nn.Module, least: int, shared: set[nn.Parameter], found: list[nn.Module]
) -> set[nn.Parameter]:
    """Add the groups in a module to ``found``; return its parameters that are in none."""
    left = set(module.parameters(recurse=False))
    for child in module.children():
        left |= _collect(child, least, shared, found)
    if sum(p.numel() for p in left) < least or not _may_be_group(module) or left & shared:
        return left
    found.append(module)
    return set()


def _may_be_group(module: nn.Module) -> bool:
    return not isinstance(module, nn.Embedding | nn.ModuleList | nn.ModuleDict)


def _shared_parameters(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that more than one module holds as its own."""
    seen: set[nn.Parameter] = set()
    shared: set[nn.Parameter] = set()
    for part in module.modules():
        own = set(part.parameters(recurse=False))
        shared |= own & seen
        seen |= own
    return shared


def group_elements(groups: Sequence[nn.Module], root: nn.Module, shards: int) -> list[int]:
    """Return the elements that each group gathers, the root's last.

    Args:
        groups: Inner ones before outer ones; what belongs to one is not counted in the next.
        root: The module that all of them are in.
        shards: Ranks among which the first dimension of each parameter is divided; it is padded to
            a multiple.
    """
    sizes = []
    counted: set[nn.Parameter] = set()
    for group in (*groups, root):
        own = [p for p in dict.fromkeys(group.parameters()) if p not in counted]
        sizes.append(sum(_padded(p, shards) for p in own))
        counted.update(own)
    return sizes


def _padded(parameter: nn.Parameter, shards: int) -> int:
    if parameter.ndim == 0 or parameter.numel() == 0:
        return parameter.numel()
    rows = parameter.shape[0]
    return -(-rows // shards) * shards * (parameter.numel() // rows)
