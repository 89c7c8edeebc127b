"""Claims on GPUs, so that two runs do not measure on one device without knowing of each other.

A claim is a lock on a file named after the device's UUID; the kernel lets go of it when the process
ends, however it does. The file holds the number of the process that has it.

The file is in a place that all processes of the machine share, whatever their TMPDIR. Which one
that is differs: Slurm may give each job a /tmp and a /dev/shm of its own, and /run/lock is root's
on some systems. So the lock is held in every place that can have it, and one is enough to be seen.

What a run takes for itself before its first launch: virtual hosts, GPUs, a folder.
"""

import fcntl
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launcher
from scalebench.records.folder import claim_folder, working_on
from scalebench.records.paths import RunPaths, default_runs_folder
from scalebench.records.run import RunInfo, RunSpec

PLACES = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))
PREFIX = "scalebench-gpu-"
FOR_EVERYBODY = 0o666
ADVICE = (
    "choose other GPUs with CUDA_VISIBLE_DEVICES, or add --allow-busy: the run then says that the "
    "device was shared."
)


class Taken(Exception):
    """A device that somebody else has, or may have.

    Args:
        refusal: What to say of it, and what to do.
        notice: What to say where it is used all the same.
    """

    def __init__(self, refusal: str, notice: str) -> None:
        super().__init__(refusal)
        self.notice = notice


@dataclass
class GpuClaims:
    """What this process has claimed.

    Attributes:
        held: UUID of a device → the descriptors of its locks.
    """

    places: Sequence[Path] = PLACES
    held: dict[str, list[int]] = field(default_factory=dict)

    def claim(self, uuids: Sequence[str], allow_busy: bool) -> list[str]:
        """Claim devices until `close`; those that are claimed already stay so.

        ``uuids`` are as CUDA tells them; ``allow_busy``: use devices that another process holds.

        Returns:
            A notice for each device that another process holds or may hold.

        Raises:
            EnvironmentUnfit: Another process holds one or may hold it.
        """
        notices = []
        for uuid in uuids:
            if uuid in self.held:
                continue
            try:
                self._claim(uuid)
            except Taken as taken:
                if not allow_busy:
                    raise EnvironmentUnfit(f"GPU {uuid} {taken}, {ADVICE}") from None
                notices.append(f"GPU {uuid} {taken.notice}")
            else:
                if not self.held[uuid]:
                    notices.append(
                        f"GPU {uuid} may be shared: no lock can be kept in "
                        f"{' or '.join(map(str, self.places))}"
                    )
        return notices

    def _claim(self, uuid: str) -> None:
        locks = self.held.setdefault(uuid, [])
        try:
            for place in shared_places(self.places):
                lock = lock_file(place / f"{PREFIX}{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}")
                if lock is not None:
                    locks.append(lock)
        except Taken:
            self._let_go(uuid)
            raise

    def _let_go(self, uuid: str) -> None:
        for lock in self.held.pop(uuid):
            os.close(lock)

    def close(self) -> None:
        """Let go of everything."""
        for uuid in list(self.held):
            self._let_go(uuid)


def shared_places(places: Iterable[Path]) -> list[Path]:
    """Return each directory once in which others cannot replace this user's files."""
    found: dict[tuple[int, int], Path] = {}
    for place in places:
        with suppress(OSError):
            about = place.stat()
            loose = about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX
            if stat.S_ISDIR(about.st_mode) and not loose:
                found.setdefault((about.st_dev, about.st_ino), place)
    return list(found.values())


def lock_file(path: Path) -> int | None:
    """Lock a file that all users share, and write this process's number into it.

    Returns:
        Its descriptor; None: this process can have no such file, or no lock on it.

    Raises:
        Taken: Another process holds the lock, or no one can tell.
    """
    try:
        descriptor = _open(path)
    except OSError as error:
        with suppress(OSError):
            raise _unreadable(path, f"cannot be opened ({error.strerror})") from None
        return None
    with ExitStack() as undo:
        undo.callback(os.close, descriptor)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:  # one more link: it is written to
            raise _unreadable(path, "has a second name")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = re.match(rb"\d+", os.pread(descriptor, 20, 0))  # by any user: digits only
            by = f"another scalebench, process {written[0].decode() if written else 'unknown'}"
            raise Taken(f"is in use by {by}. Wait for it", f"shared with {by}") from None
        except OSError:
            return None  # a file system without locks
        with suppress(OSError):  # no room for the number: the lock is what counts
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        undo.pop_all()
        return descriptor


def _open(path: Path) -> int:
    """Open a file for locking, made if need be; never waits, as for a FIFO that somebody put there.

    An existing one is opened without O_CREAT: the kernel refuses that for files of others
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        return os.open(path, flags)
    with suppress(FileExistsError):
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FOR_EVERYBODY)
        os.fchmod(descriptor, FOR_EVERYBODY)
        return descriptor
    return os.open(path, flags)


def _unreadable(path: Path, why: str) -> Taken:
    """Return what to say of a file that is no lock of scalebench's, or keeps this user out.

    Raises:
        OSError: There is none, or this user may not even look.
    """
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        why = "is not a regular file"
    owner = about.st_uid
    name = f"user {owner}"
    with suppress(KeyError):
        name = pwd.getpwuid(owner).pw_name
    remedy = "Remove it" if owner == os.geteuid() else f"Have {name} remove it"
    notice = f"may be in use: {path}, which belongs to {name}, {why}"
    return Taken(f"{notice}. {remedy}", notice)


def claim_devices(
    launcher: Launcher,
    claims: GpuClaims,
    spec: RunSpec,
    environment: Mapping[str, Any],
    allow_busy: bool,
) -> list[str]:
    """Make the virtual hosts that a run asks for, and claim the GPUs that its ranks run on.

    Returns:
        A notice for each GPU that another process measures on.

    Raises:
        EnvironmentUnfit: The hosts cannot be made, or another run measures on a GPU.
    """
    if spec.virtual_hosts is not None:
        launcher.move_to(spec.virtual_hosts, max(spec.world_sizes))
    if spec.device != "cuda":
        return []
    return claims.claim([device["uuid"] for device in environment.get("devices", [])], allow_busy)


@dataclass(frozen=True)
class Devices:
    """The devices of a run that leaves them to others between its rounds."""

    launcher: Launcher
    claims: GpuClaims
    allow_busy: bool

    def let_go(self) -> None:
        """Leave the GPUs to others."""
        self.claims.close()

    def claim(self, info: RunInfo) -> list[str]:
        """Take them again; see `claim_devices`."""
        return claim_devices(
            self.launcher, self.claims, info.spec, info.environment, self.allow_busy
        )


def run_id_of(started: datetime, spec: RunSpec) -> str:
    """Return ``<utc>_<suites>_<device>_<sha7>``; the digest is of the specification."""
    suites = "+".join(suite.name for suite in spec.suites)[:60]
    digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:7]
    return f"{started:%Y%m%dT%H%M%SZ}_{suites}_{spec.device}_{digest}"


def begin_in(out: Path | None, run_id: str) -> AbstractContextManager[RunPaths]:
    """Hold the folder of a new run for the duration of a block; None: make one for it."""
    return working_on(out or claim_folder(default_runs_folder() / run_id), new=True)
