"""What is said of a rank's training besides its steps: memory, versions, how it is distributed."""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from scalebench.worker.portable import device_facts, scheduling

MOST_GROUPS = 64

FRAMEWORKS = ("torch", "deepspeed")

FactList = list[dict[str, Any]]


def living(is_wanted: Callable[[type], Any]) -> list[Any]:
    """Return all objects of the process whose class is wanted; a class is asked for once."""
    objects = gc.get_objects()
    wanted = {kind for kind in set(map(type, objects)) if is_wanted(kind)}
    return [one for one in objects if type(one) in wanted]


def bases_of(kind: type) -> set[str]:
    """Return the names of a class and its bases that are torch's or DeepSpeed's, no namesakes."""
    return {
        base.__name__ for base in kind.__mro__ if str(base.__module__).split(".")[0] in FRAMEWORKS
    }


def train_others(some: Sequence[Any], called: Iterable[Any]) -> bool:
    """Tell whether some optimizers train parameters that the called ones do not.

    One that wraps another has the same. Both are weak references.
    """
    seen, others = ({id(p) for p in _parameters(known)} for known in (called, some))
    return bool(others - seen)


def _parameters(references: Iterable[Any]) -> Iterator[Any]:
    known = (reference() for reference in references)
    groups_of = (getattr(one, "param_groups", ()) for one in known if one is not None)
    return (p for groups in groups_of for group in groups for p in group["params"])


def of_training(optimizers: Sequence[Any], device: str) -> dict[str, Any]:
    """Return the number of parameters that the optimizers update, and the facts of the rank."""
    parameters = {
        id(p): int(p.numel())
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    found = wrappers() + layouts(optimizers)
    return {
        "num_parameters": sum(parameters.values()) or None,
        "facts": {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "optimizer": ", ".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            "backend": _backend(device),
            **scheduling(),
            "groups": groups(),
            "wrappers": found,
            **({} if found else {"modules": trained_modules(optimizers)}),
            **device_facts(torch.cuda.is_available() and torch.cuda.is_initialized()),
        },
    }


def _backend(device: str) -> str | None:
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    by_device = str(distributed.get_backend_config())  # cpu:gloo,cuda:nccl
    return backend_for(device, by_device) or str(distributed.get_backend())


def backend_for(device: str, by_device: str) -> str | None:
    """Return the backend of a device in torch's list of them; None: it has none."""
    pairs = [pair.partition(":") for pair in by_device.split(",")]
    return next((backend for name, _, backend in pairs if name == device and backend), None)


def wrappers() -> FactList:
    """Return how the modules are distributed: the wrappers that exist, with their settings.

    Called after the measurement: it looks at every object of the process.
    """
    found: FactList = []
    counted: dict[str, dict[str, Any]] = {}
    wanted = {**_DESCRIBED, **_COUNTED}
    for thing in living(lambda kind: wanted.keys() & bases_of(kind)):
        for name in wanted.keys() & bases_of(type(thing)):
            if name in _DESCRIBED:
                found.append({"kind": name, **_DESCRIBED[name](thing)})
            else:
                one = counted.setdefault(name, {"kind": name, "modules": 0, **wanted[name](thing)})
                one["modules"] += 1
    return _once(found) + list(counted.values())


def _ddp(module: Any) -> dict[str, Any]:
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in _comm_hooks(module)]
    return {
        "bucket_bytes": getattr(module, "bucket_bytes_cap", None),
        "find_unused_parameters": getattr(module, "find_unused_parameters", None),
        "unused_bytes": unused_bytes(module),
        "static_graph": getattr(module, "static_graph", None),
        "gradient_as_bucket_view": getattr(module, "gradient_as_bucket_view", None),
        "hook": ", ".join(hooks) or None,
    }


def _comm_hooks(module: Any) -> Iterable[tuple[Any, Any]]:
    return [hook for hook in getattr(module, "_comm_hooks", None) or () if isinstance(hook, tuple)]


def _deepspeed(engine: Any) -> dict[str, Any]:
    stage = getattr(engine, "zero_optimization_stage", None)
    try:
        return {"stage": int(stage()) if callable(stage) else None}
    except (TypeError, ValueError, AttributeError):
        return {"stage": None}


def _fsdp1(module: Any) -> dict[str, Any]:
    strategy = getattr(module, "sharding_strategy", None)
    return {"sharding": getattr(strategy, "name", None)}


def _fsdp2(module: Any) -> dict[str, Any]:
    meshes = (_mesh_of(parameter) for parameter in module.parameters())
    mesh = next((mesh for mesh in meshes if mesh is not None), None)
    return {} if mesh is None else {"mesh": mesh, "data_ranks": _data_ranks(module)}


def _data_ranks(module: Any) -> int | None:
    """Return over how many ranks FSDP2 divides the data; None: a version that does not tell."""
    try:
        return int(module._get_fsdp_state()._fsdp_param_group.mesh_info.mesh.size())
    except (AttributeError, TypeError, ValueError):
        return None


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _stage(stage: Any) -> dict[str, Any]:
    return {"stage": getattr(stage, "stage_index", None), "of": getattr(stage, "num_stages", None)}


def _schedule(schedule: Any) -> dict[str, Any]:
    return {
        "schedule": type(schedule).__name__,
        "microbatches": getattr(schedule, "_n_microbatches", None),
    }


_DESCRIBED = {
    "DistributedDataParallel": _ddp,
    "DeepSpeedEngine": _deepspeed,
    "ZeroRedundancyOptimizer": _nothing,
    "_PipelineStageBase": _stage,
    "_PipelineSchedule": _schedule,
}
"""Class → what is said of each object of it."""

_COUNTED = {"FSDPModule": _fsdp2, "FullyShardedDataParallel": _fsdp1}
"""Class → what is said of the first; the others are counted."""


def _once(found: FactList) -> FactList:
    """Return the same without repetitions, with a number of modules where there were some."""
    kept: FactList = []
    for one in found:
        if one not in kept:
            kept.append(one)
    return kept


def _mesh_of(parameter: Any) -> dict[str, int] | None:
    """Return the names and sizes of the mesh that a parameter is spread over; None: it is not."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return None
    shape = tuple(getattr(mesh, "shape", ()))
    names = getattr(mesh, "mesh_dim_names", None) or [f"dim {i}" for i in range(len(shape))]
    return {str(names[i]): int(size) for i, size in enumerate(shape)}


def layouts(optimizers: Iterable[Any]) -> FactList:
    """Return how parameters are spread as DTensors over meshes: each layout once, with a count.

    ``placements`` says for each dimension of the mesh what it does to the parameter: Shard(dim=0)
    cuts it, Replicate() copies it.
    """
    found: dict[str, dict[str, Any]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                mesh = _mesh_of(parameter)
                if mesh is None:
                    continue
                placed = [repr(one) for one in getattr(parameter, "placements", ())]
                key = f"{mesh} {placed}"
                layout = {"kind": "DTensor", "mesh": mesh, "placements": placed, "parameters": 0}
                found.setdefault(key, layout)["parameters"] += 1
    return list(found.values())


def trained_modules(optimizers: Iterable[Any]) -> list[str]:
    """Return the classes of the outermost modules whose parameters the optimizers update."""
    updated = {
        id(p)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    found = [
        thing
        for thing in living(lambda kind: issubclass(kind, torch.nn.Module))
        if "_parameters" in vars(thing)  # it has been made to its end
        and any(id(parameter) in updated for parameter in thing.parameters())
    ]
    inner = {id(child) for module in found for child in module.modules() if child is not module}
    return list(dict.fromkeys(type(one).__name__ for one in found if id(one) not in inner))


def groups() -> FactList:
    """Return the process groups that this rank knows: ``ranks`` in each, ``name``, ``backend``.

    Groups of one name and size are one entry: ``count`` says how many there are.
    """
    world = getattr(getattr(torch.distributed, "distributed_c10d", None), "_world", None)
    if world is None:
        return []
    found: dict[tuple[str, int], dict[str, Any]] = {}
    whole = getattr(torch.distributed, "GroupMember", None)
    for group, members in list(world.pg_group_ranks.items()):
        size = len(members)
        name = "world" if whole and group is whole.WORLD else _name(group)
        one = {"name": name, "ranks": size, "count": 0}
        found.setdefault((name, size), one)["count"] += 1
    return list(found.values())[:MOST_GROUPS] + _megatron()


def _name(group: Any) -> str:
    """Return what a group was made for, where its maker has said so; else an empty text."""
    said = str(getattr(group, "group_desc", "") or "")
    return "" if said in ("undefined", "default_pg") else said


def _megatron() -> FactList:
    """Return the sizes of Megatron's parallel groups, which it names itself."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    found = []
    for what in ("tensor", "pipeline") if state is not None else ():
        size: Any = getattr(state, f"get_{what}_model_parallel_world_size", None)
        try:
            found.append({"name": f"Megatron {what} parallel", "ranks": int(size()), "count": 1})
        except Exception:  # not set up, or of a version with other names
            continue
    return found


def unused_bytes(module: Any) -> int | None:
    """Return the size of the parameters that the last search found unused; None: not known.

    Source: DDP's own logging data, ``unused_parameter_size``.
    """
    try:
        told = module._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return None
    return int(told.get("unused_parameter_size", 0)) if told.get("iteration") else None
