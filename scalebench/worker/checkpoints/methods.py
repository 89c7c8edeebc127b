"""Ways to save and to load a training's state: ``torch.save`` on rank 0, and torch's DCP.

Each save starts when `SaveMethod` is called. What it returns tells when the rank may train again,
and when its bytes are on the disk.

The state of a training as named tensors: parameters, optimizer, random state.

Every tensor has a name that does not depend on the number of ranks. A tensor that is divided over
ranks is a `DTensor`; one that every rank has is saved once; one that a single rank owns (ZeRO's
moments) is saved by it. So a state can be loaded with another number of ranks.
"""

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec.recovery import SaveMethod
from scalebench.worker.checkpoints.store import sync_file
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
WHOLE_FILE = "state.pt"


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


@dataclass
class Saving:
    """A save that has begun.

    Attributes:
        returned_ns: When this rank could train again, on the monotonic clock.
        durable_ns: When what this rank writes was on the disk; None: it is not yet.
        pending: Ends when it is; None: it is already.
    """

    returned_ns: int
    durable_ns: int | None = None
    pending: "Future[Any] | None" = None

    @property
    def is_durable(self) -> bool:
        """Whether this rank's part is on the disk. Raises what went wrong in the background."""
        if self.pending is not None and self.pending.done():
            self.pending.result()
        return self.durable_ns is not None

    def wait(self) -> None:
        """Return when this rank's part is on the disk."""
        if self.pending is not None:
            self.pending.result()
        while self.durable_ns is None:  # the callback comes a moment after the result
            time.sleep(1e-4)


@dataclass(frozen=True)
class Saver:
    """What saving needs besides the tensors.

    Attributes:
        group: Of all ranks, for DCP alone: its background thread must not meet others there. None:
            a single process.
    """

    context: RankContext
    group: "dist.ProcessGroup | None"

    def save(self, method: SaveMethod, tensors: Tensors, folder: Path) -> Saving:
        """Save tensors into an empty folder; every rank takes part."""
        return _SAVE[method](self, tensors, folder)

    def load(self, method: SaveMethod, tensors: Tensors, folder: Path) -> None:
        """Fill tensors with what was saved; every rank takes part.

        The number of ranks may be another than that which saved.
        """
        if method == "full":
            saved = torch.load(folder / WHOLE_FILE, mmap=True, weights_only=True)
            copy_from_whole(tensors, saved)
            return
        with torch.no_grad():
            load_sharded(
                cast(dict[str, Any], tensors),
                checkpoint_id=folder,
                process_group=self.group,
                no_dist=self.group is None,
            )


def why_not(method: SaveMethod, device: torch.device) -> str | None:
    """Say why a method cannot be used on a device; None: it can."""
    if method == "async-pinned" and device.type != "cuda":
        return "page-locked memory is for copies from a GPU, and the ranks are on the CPU"
    return None


def open_saver(context: RankContext) -> Saver:
    """Return what saves and loads; every rank takes part."""
    timeout = timedelta(seconds=context.cell.collective_timeout_s)
    group = None if context.control is None else dist.new_group(backend="gloo", timeout=timeout)
    return Saver(context, group)


def _full(saver: Saver, tensors: Tensors, folder: Path) -> Saving:
    gathered = gather_whole(tensors, saver.context)
    path = folder / WHOLE_FILE
    if saver.context.rank == 0:
        torch.save(gathered, path)
    saver.context.barrier()
    returned = time.monotonic_ns()
    if saver.context.rank == 0:
        sync_file(path)
        sync_file(folder)
    saver.context.barrier()
    return Saving(returned, time.monotonic_ns())


def _sharded(saver: Saver, tensors: Tensors, folder: Path) -> Saving:
    save_sharded(
        cast(dict[str, Any], tensors),
        storage_writer=FileSystemWriter(folder),  # calls fsync on every file
        process_group=saver.group,
        no_dist=saver.group is None,
    )
    now = time.monotonic_ns()
    return Saving(now, now)


def _asynchronous(pinned: bool) -> Callable[[Saver, Tensors, Path], Saving]:
    def save(saver: Saver, tensors: Tensors, folder: Path) -> Saving:
        answer: Any = async_save(
            cast(dict[str, Any], tensors),
            storage_writer=FileSystemWriter(folder),
            process_group=saver.group,
            no_dist=saver.group is None,
            async_stager=_pinned_stager() if pinned else None,
        )
        if not isinstance(answer, Future):
            answer.staging_completion.result()
            answer = answer.upload_completion
        saving = Saving(time.monotonic_ns(), pending=answer)

        def note(_: object) -> None:
            saving.durable_ns = time.monotonic_ns()

        answer.add_done_callback(note)
        return saving

    return save


def _pinned_stager() -> Any:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(StagingOptions(True, False, False, True))


_SAVE: Mapping[SaveMethod, Callable[[Saver, Tensors, Path], Saving]] = {
    "full": _full,
    "sharded": _sharded,
    "async": _asynchronous(pinned=False),
    "async-pinned": _asynchronous(pinned=True),
}
