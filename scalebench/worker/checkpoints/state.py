"""The state of a training as named tensors: parameters, optimizer, random state.

Every tensor has a name that does not depend on the number of ranks. A tensor that is divided over
ranks is a `DTensor`; one that every rank has is saved once; one that a single rank owns (ZeRO's
moments) is saved by it. So a state can be loaded with another number of ranks.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scalebench.worker.process.context import RankContext, dtype_of
from scalebench.worker.strategies.base import Training, whole

Tensors = dict[str, torch.Tensor]
Digests = dict[str, str]
"""Name of a tensor → a hash of its bits, of the whole tensor."""

DIGEST_BYTES = 8
RANDOM = "random."
HOST_RANDOM = np.dtype(
    [
        ("torch", np.uint8, len(torch.get_rng_state())),
        ("python", np.uint32, 625),  # 624 words of the Mersenne twister, and the place in them
        ("python_gauss", np.float64),  # NaN: none is kept
        ("numpy", np.uint32, 624),
        ("numpy_place", np.float64, 3),  # position, whether a normal number is kept, that number
    ]
)
"""What is in a tensor of the random state of a rank's host, byte by byte."""


def state_of(training: Training, rank: int) -> Tensors:
    """Return this rank's tensors of a training that has taken a step; they share its memory.

    In the order of the module, as scripts have them: torch.distributed.checkpoint divides tensors
    that every rank has over the ranks in this order, and the stall depends on it by a tenth.
    """
    own = _bare(training.module).state_dict(keep_vars=True)  # walks through the modules once
    tensors: Tensors = {f"model.{name}": t.detach() for name, t in own.items()}
    first_names: dict[torch.Tensor, str] = {}
    for name, tensor in own.items():
        first_names.setdefault(tensor, name)
    for parameter, name in first_names.items():
        for key, value in training.optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{name}.{key}"] = value
    return tensors | {f"{RANDOM}{rank}.{name}": t for name, t in random_state().items()}


def make_optimizer_state(training: Training) -> None:
    """Have an optimizer that has not stepped make its state, so that there is what to load into.

    A step with gradients and learning rates of zero; the values do not matter.
    """
    optimizer = training.optimizer
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(rate) if torch.is_tensor(rate := group["lr"]) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group of parameters, as JSON can hold them."""
    return [
        {name: _plain(value) for name, value in group.items() if name not in ("params", "foreach")}
        for group in optimizer.param_groups
    ]


def apply_settings(optimizer: torch.optim.Optimizer, settings: Iterable[Mapping[str, Any]]) -> None:
    """Give the groups of parameters the numbers that they had when they were saved."""
    for group, saved in zip(optimizer.param_groups, settings, strict=True):
        for name, value in saved.items():
            if isinstance(value, float) and not torch.is_tensor(group.get(name)):
                group[name] = value


def random_state() -> Tensors:
    """Return the state of every generator of random numbers: torch's, Python's, NumPy's.

    All of the host's in one tensor of bytes (`HOST_RANDOM`): every tensor more makes a save longer.
    """
    _, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    host = np.zeros(1, HOST_RANDOM)
    host["torch"] = torch.get_rng_state().numpy()
    host["python"] = words
    host["python_gauss"] = math.nan if gauss is None else gauss
    host["numpy"] = numpy_state[1]
    host["numpy_place"] = numpy_state[2:]
    found = {"host": torch.from_numpy(host.view(np.uint8))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Put every generator where it was; the names are those of `random_state`."""
    (host,) = state["host"].numpy().view(HOST_RANDOM)
    torch.set_rng_state(torch.from_numpy(host["torch"].copy()))
    gauss = float(host["python_gauss"])
    words = tuple(host["python"].tolist())
    random.setstate((3, words, None if math.isnan(gauss) else gauss))
    position, has_gauss, cached = host["numpy_place"].tolist()
    np.random.set_state(("MT19937", host["numpy"], int(position), int(has_gauss), cached))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def random_of(tensors: Mapping[str, torch.Tensor], rank: int) -> Tensors:
    """Return one rank's random state among saved tensors, under the names of `random_state`."""
    start = f"{RANDOM}{rank}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def digests_of(tensors: Tensors, context: RankContext) -> Digests:
    """Return a hash of every tensor, whole, of all ranks together; on rank 0 alone, else empty.

    Every rank takes part.

    Raises:
        RuntimeError: Ranks that should have the same tensor do not.
    """
    own = {name: _digest(whole(t, context.device)) for name, t in sorted(tensors.items())}
    of_ranks = context.gather(own)
    if context.rank:
        return {}
    merged: Digests = {}
    for rank, digests in enumerate(of_ranks):
        for name, digest in digests.items():
            if merged.setdefault(name, digest) != digest:
                raise RuntimeError(f"rank {rank} has another {name} than the ranks before it")
    return merged


def differences(saved: Digests, found: Digests, with_random: bool) -> list[str]:
    """Return the names of tensors that are not equal bit for bit, or are on one side alone."""
    names = {name for name in saved.keys() | found.keys()}
    return sorted(
        name
        for name in names
        if saved.get(name) != found.get(name) and (with_random or not name.startswith(RANDOM))
    )


def gather_whole(tensors: Tensors, context: RankContext) -> Tensors:
    """Return all tensors, whole and in host memory, on rank 0; nothing on the others.

    Every rank takes part.
    """
    at_home = context.rank == 0
    gathered: Tensors = {}
    for name, tensor in sorted(tensors.items()):
        full = whole(tensor, context.device)
        if at_home:
            gathered[name] = full.detach().cpu()
    _fetch_what_others_own(tensors, gathered, context)
    return gathered


def _fetch_what_others_own(tensors: Tensors, gathered: Tensors, context: RankContext) -> None:
    """Send to rank 0 what it does not have, each tensor from the first rank that has it."""
    if context.control is None:
        return
    of_ranks = context.gather({name: (t.shape, str(t.dtype)) for name, t in tensors.items()})
    seen = set(of_ranks[0])
    for owner, shapes in enumerate(of_ranks):
        for name in sorted(shapes.keys() - seen):
            shape, dtype = shapes[name]
            if context.rank == owner:
                dist.send(tensors[name].detach().cpu().contiguous(), 0, group=context.control)
            elif context.rank == 0:
                gathered[name] = torch.empty(shape, dtype=dtype_of(dtype))
                dist.recv(gathered[name], owner, group=context.control)
        seen |= shapes.keys()


def copy_from_whole(tensors: Tensors, saved: Mapping[str, torch.Tensor]) -> None:
    """Fill this rank's tensors with its parts of whole ones; nothing is sent.

    Raises:
        KeyError: A tensor was not saved.
    """
    with torch.no_grad():
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                tensor.to_local().copy_(_own_part(tensor, saved[name]))
            else:
                tensor.copy_(saved[name])


def _own_part(tensor: DTensor, full: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return full[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


def _bare(module: torch.nn.Module) -> torch.nn.Module:
    if isinstance(module, DistributedDataParallel):
        inner: torch.nn.Module = module.module
        return inner
    return module


def _plain(value: Any) -> Any:
    if torch.is_tensor(value):
        return float(value)
    return list(value) if isinstance(value, tuple) else value


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return ""
    content: Any = flat.view(torch.uint8).numpy()
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
