"""Ways to save and to load: ``torch.save`` on rank 0, and ``torch.distributed.checkpoint`` (DCP).

Each save starts when `SaveMethod` is called. What it returns tells when the rank may train again,
and when its bytes are on the disk.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

from scalebench.spec.recovery import SaveMethod
from scalebench.worker.checkpoints.state import Tensors, copy_from_whole, gather_whole
from scalebench.worker.checkpoints.store import sync_file
from scalebench.worker.process.context import RankContext

WHOLE_FILE = "state.pt"


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
