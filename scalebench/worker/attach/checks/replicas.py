"""What ranks hold alike: parameters, buffers, random numbers; and who distributes them.

DDP, DeepSpeed's ZeRO up to stage 2 and FSDP1's NO_SHARD keep whole copies. Hybrid sharding (FSDP1,
FSDP2, any DTensor with a replicated dimension) keeps equal shards: those are compared. Without any
of these, a script that all-reduces every gradient by itself keeps copies, too. What one rank alone
holds cannot differ from anything.
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scalebench.worker.attach.facts import bases_of, living
from scalebench.worker.attach.imports import after_import_of

WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel", "FSDPModule")

MAKERS = (
    ("torch.optim.optimizer", "Optimizer", "__init__"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "__init__"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "__init__"),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "init"),
    ("torch.distributed._composable.fsdp._fsdp_state", "FSDPState", "init"),  # before torch 2.6
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "__init__"),
)
"""Module, class and method that make one. FSDP2 gives a module another class: it is handed over."""
MOST_SUMS = 256
"""Tensors that follow each other share one where there are more."""

ROW = 1024
"""Elements."""

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → integers of that size."""

NO_WRAPPER = "nothing that keeps copies alike wraps the model"
NOW_AND_THEN = "the models are averaged now and then, and differ in between"
DIVIDED = "each rank holds other parts, of which there is no second copy"
UNEVEN = "ranks have uneven data (join), and are not at the same step at the same time"
UNLIKE = "several wrappers keep copies on different ranks"


class Made:
    """Weak references to all of them, in their order."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def watch(self, put: Callable[[Any, str, Any], None]) -> None:
        """Note what is made from now on; ``put`` replaces a method of a class."""
        for module, owner, method in MAKERS:
            after_import_of(module, functools.partial(self._watch_one, put, module, owner, method))

    def _watch_one(self, put: Any, module: str, owner: str, method: str) -> None:
        kind = getattr(sys.modules[module], owner, None)
        original = getattr(kind, method, None)
        if original is None:
            return

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            one = args[0] if method == "__init__" else args[1]
            self._all += map(weakref.ref, one if isinstance(one, tuple) else (one,))
            return answer

        put(kind, method, make)

    def optimizers(self) -> list[Any]:
        """Return weak references to the optimizers that exist, called so far or not."""
        return [weakref.ref(one) for one in self._alive() if isinstance(one, torch.optim.Optimizer)]

    def wrappers(self) -> list[Any]:
        """Return the modules that distribute others over ranks."""
        return [one for one in self._alive() if bases_of(type(one)).intersection(WRAPPERS)]

    def _alive(self) -> Iterator[Any]:
        known = {id(one): one for of in self._all if (one := of()) is not None}
        return iter(known.values())


class Held(NamedTuple):
    """A tensor that other ranks hold as well.

    Attributes:
        ranks: Those; None: all.
        of: Weak reference to what it is taken from.
    """

    name: str
    ranks: tuple[int, ...] | None
    of: Any
    is_buffer: bool = False


class Replicas:
    """Sums of what is held alike, at several moments; takes about as long as reading it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._held: list[list[Held]] = []
        self._unavailable: str | None = NO_WRAPPER
        self._moments: list[dict[str, Any]] = []
        self._states: list[list[int]] = []
        self._late = self._is_guess = self._averages = self._has_optimizers = False
        self._modules: list[Any] = []
        self._broadcast = False

    def look(self, step: int, optimizers: Sequence[Any], modules: Sequence[Any]) -> None:
        """Note the sums before the gradients of a step are computed.

        ``step``: calls of optimizers so far. None among ``optimizers``: one that is gone.
        ``modules``: those that distribute others.
        """
        is_gone = any(one.of() is None for chunk in self._held for one in chunk)
        if not self._moments or not self._has_optimizers or is_gone:
            self._find([one for one in optimizers if one is not None], _wrappers(modules))
            self._moments.clear()
        self._moments += [{"step": step, "sums": list(map(_sums, self._held))}]
        self._states.append([step, _random_state(self._device)])

    def look_at_end(self, step: int, optimizers: Sequence[Any], modules: Sequence[Any]) -> None:
        """Note the sums after the last step, unless the ranks were still to exchange them."""
        if not self._late:
            self.look(step, optimizers, modules)
            self._states.pop()  # of a moment between two steps nothing is drawn

    def confirm(self, optimizers: Sequence[Any], reduced: Mapping[int, Any]) -> None:
        """Note whether the gradients of the first step are what all ranks had all-reduced.

        ``reduced``: address of a tensor that the script's own code had all-reduced → the group.
        """
        gradients = [p.grad for p in _trained(optimizers) if p.grad is not None]
        is_known = all(one.layout == torch.strided for one in gradients)
        groups = {reduced.get(one.data_ptr()) for one in gradients} if is_known else {None}
        self._averages = bool(groups) and all(one and _members(one) is None for one in groups)
        if self._is_guess and not self._averages:
            self._held = []

    def _find(self, optimizers: Sequence[Any], found: _Wrappers) -> None:
        self._has_optimizers = bool(optimizers)
        self._modules = [one for module in found.all for one in module.modules()]
        self._late = any(type(one).__name__ == "ZeroRedundancyOptimizer" for one in optimizers)
        self._broadcast = any(getattr(one, "broadcast_buffers", False) for one in found.ddp)
        try:
            held, self._unavailable = list(_held(found, optimizers)), None
        except _NotAlike as why:
            held, self._unavailable = [], str(why)
        self._held = list(_chunks(held))
        self._is_guess = not found.all and not any(map(_is_divided, _trained(optimizers)))

    def noted(self) -> dict[str, Any]:
        """Return what is compared between ranks.

        Returns:
            ``held``: name, ranks (null: all), and whether it is a buffer, of each sum. ``moments``:
            ``step`` and ``sums`` (bits, sum and norm of the values). ``replicas_unavailable``: why
            there are none. ``broadcasts``: whether DDP gives all ranks the buffers of rank 0.
            ``averages``: whether there is no wrapper, and the script itself all-reduces gradients.
            ``states``: step and checksum of the random state. ``dropouts``, ``batch_norms``:
            modules that draw random numbers, and that normalise by the batch of one rank.
        """
        is_known = self._averages or not self._is_guess
        held = self._held if is_known else []
        return {
            "held": [[_name_of(chunk), chunk[0].ranks, chunk[0].is_buffer] for chunk in held],
            "moments": self._moments if held else [],
            "replicas_unavailable": self._unavailable if is_known else NO_WRAPPER,
            "averages": self._averages and self._is_guess,
            "broadcasts": self._broadcast,
            "states": self._states,
            "dropouts": sum(_drops(one) for one in self._modules),
            "batch_norms": sum(_normalises_alone(one) for one in self._modules),
        }


class _NotAlike(Exception):
    """Nothing is held alike; the text says why."""


class _Wrappers(NamedTuple):
    ddp: list[Any]
    deepspeed: list[Any]
    fsdp1: list[Any]
    fsdp2: list[Any]

    @property
    def all(self) -> list[Any]:
        return [*self.ddp, *self.deepspeed, *self.fsdp1, *self.fsdp2]


def _wrappers(modules: Sequence[Any]) -> _Wrappers:
    """Return modules that distribute others by their kind."""
    made = [one for one in modules if "_parameters" in vars(one)]  # to their end
    return _Wrappers(*([one for one in made if name in bases_of(type(one))] for name in WRAPPERS))


def _held(found: _Wrappers, optimizers: Sequence[Any]) -> Iterator[Held]:
    divided = list(_of_shards(found, optimizers))
    trained = _trained(optimizers)
    if found.fsdp1 or any(map(_is_divided, trained)):
        if not divided:
            raise _NotAlike(DIVIDED)
        yield from divided
    elif found.deepspeed:
        yield from _of_deepspeed(found.deepspeed)
    elif found.ddp:
        yield from _of_ddp(found.ddp, trained)
    else:
        names = _names_in_largest()
        yield from (Held(names.get(id(p), "a parameter"), None, weakref.ref(p)) for p in trained)


def _trained(optimizers: Sequence[Any]) -> list[Any]:
    return [p for one in optimizers for group in one.param_groups for p in group["params"]]


def _is_divided(parameter: Any) -> bool:
    return hasattr(parameter, "device_mesh")


def _of_ddp(wrapped: Sequence[Any], trained: Sequence[Any]) -> Iterator[Held]:
    ranks = _ranks_of_ddp(wrapped)
    known: set[int] = set()
    ignored: set[int] = set()
    for module in wrapped:
        left_out = getattr(module, "parameters_to_ignore", ())
        for name, parameter in module.module.named_parameters():
            if name in left_out:
                ignored.add(id(parameter))
            elif id(parameter) not in known:
                known.add(id(parameter))
                yield Held(name, ranks, weakref.ref(parameter))
        for name, buffer in _buffers(module.module):
            if name not in left_out:
                yield Held(name, ranks, weakref.ref(buffer), is_buffer=True)
    others = {id(p): p for p in trained if id(p) not in ignored | known}
    names = dict(_owned(others))
    for key, parameter in others.items():
        name = names.get(key, "a parameter")
        yield Held(f"{name}, outside of DDP", ranks, weakref.ref(parameter))


def _ranks_of_ddp(wrapped: Sequence[Any]) -> tuple[int, ...] | None:
    if any("SGD" in str(hook) for one in wrapped for hook in _hooks(one)):
        raise _NotAlike(NOW_AND_THEN)
    if any(getattr(getattr(one, "_join_config", None), "enable", False) for one in wrapped):
        raise _NotAlike(UNEVEN)
    groups = {_members(getattr(module, "process_group", None)) for module in wrapped}
    if len(groups) > 1:
        raise _NotAlike(UNLIKE)
    return groups.pop()


def _buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Return the buffers that ranks are meant to hold alike.

    BatchNorm's own statistics are those of each rank by design, as DDP's documentation says. What
    is not saved, and single numbers, may be anything: counters, masks.
    """
    kinds: Any = torch.nn.modules.batchnorm
    for name, module in model.named_modules():
        alone = isinstance(module, kinds._NormBase) and not isinstance(
            module, torch.nn.SyncBatchNorm
        )
        for own, buffer in module.named_buffers(recurse=False):
            is_saved = own not in module._non_persistent_buffers_set
            if is_saved and not alone and buffer.is_floating_point() and buffer.numel() > 1:
                yield f"{name}.{own}" if name else own, buffer


def _owned(wanted: Any) -> Iterator[tuple[int, str]]:
    """Name parameters by the modules that have them."""
    for one in living(lambda kind: issubclass(kind, torch.nn.Module)) if wanted else ():
        for name, parameter in vars(one).get("_parameters", {}).items():
            if id(parameter) in wanted:
                yield id(parameter), f"{name} of {type(one).__name__}"


def _names_in_largest() -> dict[int, str]:
    """Name parameters by the module that has most of them."""
    found = living(lambda kind: issubclass(kind, torch.nn.Module))
    made = [list(one.named_parameters()) for one in found if "_parameters" in vars(one)]
    return {id(parameter): name for name, parameter in max(made, key=len, default=[])}


def _of_deepspeed(engines: Sequence[Any]) -> Iterator[Held]:
    for engine in engines:
        named = list(engine.module.named_parameters())
        if any(hasattr(parameter, "ds_id") for _, parameter in named):  # ZeRO-3
            raise _NotAlike(DIVIDED)
        for name, parameter in named:
            group = getattr(engine, "data_parallel_group", None)
            if not getattr(parameter, "allreduce", True):  # an expert
                group = engine.expert_data_parallel_group[parameter.group_name]
            yield Held(name, _members(group), weakref.ref(parameter))


def _of_shards(found: _Wrappers, optimizers: Sequence[Any]) -> Iterator[Held]:
    for module in found.fsdp1:
        handle = getattr(module, "_handle", None)
        flat = getattr(handle, "flat_param", None)
        strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
        group = {"NO_SHARD": "process_group"}.get(strategy, "_inter_node_pg")
        if flat is not None and ("HYBRID" in strategy or strategy == "NO_SHARD"):
            ranks = _members(getattr(module, group, None))
            yield Held(", ".join(getattr(flat, "_fqns", ())[:2]), ranks, weakref.ref(flat))
    names = dict(_named_by_fsdp2(found.fsdp2))
    for number, parameter in enumerate(_trained(optimizers)):
        ranks = _copies_of(parameter)
        if ranks is not None and len(ranks) > 1:
            name = names.get(id(parameter), f"parameter {number} of the optimizer")
            yield Held(name, ranks, weakref.ref(parameter))


def _named_by_fsdp2(modules: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Name sharded parameters: a module itself knows them only while they are not gathered."""
    for module in modules:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [
            getattr(state, "_fsdp_param_group", None)
        ]
        for group in groups:
            for one in getattr(group, "fsdp_params", ()):
                name = getattr(one, "_param_fqn", None)
                if name:
                    yield id(one.sharded_param), name


def _copies_of(parameter: Any) -> tuple[int, ...] | None:
    """Return the ranks that hold the same part of a DTensor; None: it is none."""
    mesh = getattr(parameter, "device_mesh", None)
    place = None if mesh is None else mesh.get_coordinate()
    if mesh is None or place is None:
        return None
    at = tuple(
        slice(None) if placed.is_replicate() else place[i]
        for i, placed in enumerate(parameter.placements)
    )
    return tuple(int(rank) for rank in mesh.mesh[at].reshape(-1))


def num_copies(parameter: Any) -> int:
    """Return how many ranks hold the same part of a parameter."""
    ranks = _copies_of(parameter)
    world = int(torch.distributed.get_world_size()) if torch.distributed.is_initialized() else 1
    if ranks is None:
        return world
    return max(1, len(ranks) * world // int(parameter.device_mesh.size()))


def _hooks(wrapped: Any) -> Any:
    return getattr(wrapped, "_comm_hooks", None) or ()


def _members(group: Any) -> tuple[int, ...] | None:
    """Return the ranks of a group; None: all of them."""
    ranks = torch.distributed.get_process_group_ranks(group)
    return None if len(ranks) == torch.distributed.get_world_size() else tuple(ranks)


def _drops(module: Any) -> bool:
    kinds: Any = torch.nn.modules
    draws = isinstance(module, kinds.dropout._DropoutNd) and module.p > 0
    attends = isinstance(module, torch.nn.MultiheadAttention) and module.dropout > 0
    return bool(module.training and (draws or attends))


def _normalises_alone(module: Any) -> bool:
    kinds: Any = torch.nn.modules.batchnorm
    known = isinstance(module, kinds._BatchNorm) and not isinstance(module, torch.nn.SyncBatchNorm)
    return known and bool(module.training)


def _random_state(device: str) -> int:
    of_cuda = device == "cuda" and torch.cuda.is_initialized()
    state = torch.cuda.get_rng_state() if of_cuda else torch.get_rng_state()
    return zlib.crc32(bytes(state.numpy()))


def _chunks(held: Sequence[Held]) -> Iterator[list[Held]]:
    """Put tensors of one kind together that follow each other, so that there are not too many."""
    kinds: dict[Any, list[Held]] = {}
    for one in held:
        kinds.setdefault((one.ranks, one.is_buffer), []).append(one)
    each = -(-len(held) // MOST_SUMS) or 1
    for some in kinds.values():
        for first in range(0, len(some), each):
            yield some[first : first + each]


def _name_of(chunk: Sequence[Held]) -> str:
    first, last = chunk[0].name, chunk[-1].name
    return first if len(chunk) == 1 else f"{first} to {last}"


def _sums(chunk: Sequence[Held]) -> list[float]:
    """Return the bits, the sum and the norm of some tensors."""
    known = [_local(one.of()) for one in chunk]
    flat = [one.reshape(-1) for one in known if one.numel() and not one.is_complex()]
    rows = [row for one in flat for row in _rows(one)]
    total = sum(float(p.sum(1, dtype=wide).sum(dtype=torch.float64)) for p, wide in rows)
    return [sum(map(_bits, flat)), total, sum(map(square, flat)) ** 0.5]


def square(tensor: Any) -> float:
    """Return the squared norm of a tensor."""
    norms = [torch.linalg.vector_norm(p, dim=1, dtype=to) for p, to in _rows(tensor.reshape(-1))]
    return sum(float(one.square().sum(dtype=torch.float64)) for one in norms)


def _bits(flat: Any) -> int:
    """Return the sum of a tensor's bits: of words of eight bytes, many times faster than others."""
    each = 8 // flat.element_size()
    end = flat.numel() // each * each if flat.storage_offset() % each == 0 else 0
    words = int(flat[:end].view(torch.int64).sum()) if end else 0
    return words + int(flat[end:].view(INTEGERS[flat.element_size()]).sum())


def _rows(flat: Any) -> Iterator[tuple[Any, Any]]:
    """Return a tensor in rows, which may be summed in float32, and the type to do it in.

    The sum over all rows has to be of float64: then both together are within 1e-6 of the norm, and
    take an eighth of the time.
    """
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    end = flat.numel() // ROW * ROW
    if end:
        yield flat[:end].view(-1, ROW), wide
    if end < flat.numel():
        yield flat[end:].view(1, -1), wide


def _local(tensor: Any) -> Any:
    """Return the part of a tensor that this rank keeps."""
    shard = getattr(tensor, "_local_shard", None)  # of FSDP1, also while it is gathered
    if shard is not None:
        return shard.detach()
    detached = tensor.detach()
    return detached.to_local() if hasattr(detached, "to_local") else detached
