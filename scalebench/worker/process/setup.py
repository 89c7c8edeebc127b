"""What a rank does to its own process before it trains, and what it asks of NCCL's log.

What a rank does to its own process before it trains: die with its parent, pin, be scheduled.

Everything here is best effort by platform and reports what is in force, so that the record says
it instead of assuming it.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.machine import (
    Processor,
    count_cores,
    gpu_node,
    host_links,
    processors_of_rank,
    read_processors,
)
from scalebench.records.measured.rank import NcclWires
from scalebench.spec import Device, Job
from scalebench.worker.portable import scheduling_class

_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_SOCKET_FOLDER_LENGTH = 80
"""The path of a socket has to fit into 108 bytes (104 on macOS), its name included."""


@dataclass(frozen=True)
class NcclLog:
    """The log of this process.

    Attributes:
        path: Where NCCL writes it; None: it writes none that can be found, see ``reason``.
    """

    path: Path | None
    reason: str | None = None

    def read(self, ask_gpus: bool = True) -> NcclWires | None:
        """Return what it says; None: nothing. See `scalebench.machine.host_links`."""
        with suppress(OSError):
            if self.path is not None:
                with self.path.open(encoding="utf-8", errors="replace") as lines:
                    return read_nccl_log(lines, [host_links(ask_gpus)])
        return None


def write_nccl_log(path: Path, output: Path) -> NcclLog:
    """Have NCCL write its log from now on, unless the user has a setting for it.

    ``output``: where this process prints: the log goes there if the user asked for it.
    """
    own = {name for name in os.environ if name.startswith("NCCL_DEBUG")} | set(_in_files())
    if not own:
        os.environ.update({**_SETTINGS, "NCCL_DEBUG_FILE": os.fspath(path)})
        return NcclLog(path)
    printed = os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")
    if printed and "NCCL_DEBUG_FILE" not in own:
        return NcclLog(output)
    return NcclLog(None, f"{', '.join(sorted(own))} is set: NCCL's log is left as you want it")


def _in_files() -> Iterator[str]:
    """Yield the variables about the log that NCCL's configuration files set."""
    for name in (os.environ.get("NCCL_CONF_FILE", "~/.nccl.conf"), "/etc/nccl.conf"):
        with suppress(OSError, RuntimeError):
            for line in Path(name).expanduser().read_text(errors="replace").splitlines():
                if line.startswith("NCCL_DEBUG"):
                    yield line.partition("=")[0].strip()


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent ends (Linux; elsewhere nothing).

    If ``parent``, the pid that is expected, is gone already, this process exits: the request would
    come too late.
    """
    if sys.platform != "linux":
        return
    kernel_option(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def kernel_option(option: int, value: int) -> None:
    """Set one of the kernel's options of this process (Linux; elsewhere nothing); see prctl(2)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def pin(local_rank: int, threads: int, device: Device) -> dict[str, Any]:
    """Give this rank ``threads`` processors; see `scalebench.machine.processors_of_rank`.

    Returns:
        As `placed_on`.
    """
    if not hasattr(os, "sched_setaffinity"):
        return {"affinity": None}
    allowed = read_processors(os.sched_getaffinity(0))
    nodes = [_gpu_node(rank) if device == "cuda" else None for rank in range(local_rank + 1)]
    mine = processors_of_rank(allowed, threads, nodes)
    os.sched_setaffinity(0, [processor.number for processor in mine])
    return placed_on(mine)


def unpinned_place() -> dict[str, Any]:
    """Return what `pin` returns, for a rank that is left where it is."""
    if not hasattr(os, "sched_getaffinity"):
        return {"affinity": None}
    return placed_on(read_processors(os.sched_getaffinity(0)))


def placed_on(processors: Sequence[Processor]) -> dict[str, Any]:
    """Return the facts of a rank that may use some processors.

    Returns:
        ``affinity`` (the processors; None where the platform cannot pin), ``numa_nodes`` (theirs),
        and ``num_cores`` (physical cores: fewer than processors where siblings share one).
    """
    return {
        "affinity": sorted(processor.number for processor in processors),
        "numa_nodes": sorted({p.node for p in processors if p.node is not None}),
        "num_cores": count_cores(processors),
    }


def _gpu_node(local_rank: int) -> int | None:
    """Return the NUMA node of a local rank's GPU; None where the machine does not say."""
    if not torch.cuda.device_count():
        return None
    gpu = torch.cuda.get_device_properties(local_rank % torch.cuda.device_count())
    domain, bus, device = (
        getattr(gpu, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")
    )
    if min(domain, bus, device) < 0:  # an older torch does not say
        return None
    return gpu_node(f"{domain:04x}:{bus:02x}:{device:02x}.0")


def unpinned() -> set[int] | None:
    """Return the processors of this process's parent: its own, had it not been pinned.

    Returns:
        None where the platform cannot pin.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    return os.sched_getaffinity(os.getppid())


def keep_sockets_in(folder: Path) -> None:
    """Have the processes started from here put their sockets in ``folder``.

    The workers of a DataLoader hand over batches through a socket in a folder of their own, and
    leave it behind when they are killed. This one is removed by the launcher.
    """
    if len(os.fspath(folder)) <= _SOCKET_FOLDER_LENGTH:
        config: dict[str, object] = vars(multiprocessing.current_process())["_config"]
        config["tempdir"] = os.fspath(folder)


def schedule_as_batch() -> str:
    """Put this process in SCHED_BATCH where there is one; return the class in force.

    gloo's loop thread spins. With more ranks than cores a small all-reduce then takes multiples
    of the scheduler's tick, unless waking threads do not preempt running ones.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return "default"
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        return f"default (SCHED_BATCH refused: {error.strerror})"
    return "SCHED_BATCH"


def lead_session() -> None:
    """Put this process into a new session, as torchrun does with each of its ranks.

    Linux divides processors among sessions (autogroups). Ranks that are not pinned and share one
    compete thread by thread, gloo's spinning ones with those that train.

    Source: torch.distributed.elastic.multiprocessing.subprocess_handler.
    """
    if not hasattr(os, "setsid"):
        return
    with suppress(PermissionError):  # it leads its process group: its launcher has seen to that
        os.setsid()


def prepare_rank(job: Job, local_rank: int) -> dict[str, Any]:
    """Bring this process into the state in which it is measured; return what is in force."""
    pinned = pin(local_rank, job.threads, job.device) if job.pinned else unpinned_place()
    if not job.pinned:
        lead_session()
    batch = job.device == "cpu" and job.pinned
    scheduling = schedule_as_batch() if batch else scheduling_class()
    torch.set_num_threads(job.threads)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    return {
        "threads": torch.get_num_threads(),
        **pinned,
        "scheduling_class": scheduling,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def redirect_output(log: Path) -> None:
    """Send standard output and error of this process to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def enter(place: dict[str, Any]) -> None:
    """Move this process, which must have one thread only, to its place; see setns(2).

    Args:
        place: ``cgroup`` (file that takes the pids of a group's processes), ``user_namespace``
            and ``network_namespace`` (files); each may be None or missing.

    Raises:
        OSError: The place is gone or may not be entered.
    """
    if place.get("cgroup"):
        Path(place["cgroup"]).write_text(str(os.getpid()))
    kinds = (("user_namespace", CLONE_NEWUSER), ("network_namespace", CLONE_NEWNET))
    # Opened before any is entered: from inside, the others may be out of sight.
    namespaces = [
        (os.open(place[name], os.O_RDONLY | os.O_CLOEXEC), kind)
        for name, kind in kinds
        if place.get(name)
    ]
    for descriptor, kind in namespaces:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, kind) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(descriptor)
