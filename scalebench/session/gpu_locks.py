"""Claims on GPUs, so that two runs do not measure on one device without knowing of each other.

A claim is a lock on a file named after the device's UUID; the kernel lets go of it when the process
ends, however it does. The file holds the number of the process that has it.
"""

import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.errors import EnvironmentUnfit

PREFIX = "scalebench-gpu-"
FOR_EVERYBODY = 0o666


@dataclass
class GpuClaims:
    """What this process has claimed.

    Attributes:
        held: UUID of a device → the descriptor of its lock.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    held: dict[str, int] = field(default_factory=dict)

    def claim(self, uuids: Sequence[str], allow_busy: bool) -> list[str]:
        """Claim devices until `close`; those that are claimed already stay so.

        Args:
            uuids: As CUDA tells them.
            allow_busy: Use devices that another process holds.

        Returns:
            A notice for each device that another process holds.

        Raises:
            EnvironmentUnfit: Another process holds one.
        """
        shared = []
        for uuid in uuids:
            if uuid in self.held:
                continue
            descriptor = self._open(uuid)
            if descriptor is None:
                continue  # another user's file that may not be opened: nothing can be told
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(descriptor)
                if not allow_busy:
                    raise EnvironmentUnfit(
                        f"GPU {uuid} is in use by another scalebench, process {holder}. Wait for "
                        "it, choose other GPUs with CUDA_VISIBLE_DEVICES, or add --allow-busy: "
                        "the run then says that the device was shared."
                    ) from None
                shared.append(f"GPU {uuid} shared with another scalebench, process {holder}")
            else:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                self.held[uuid] = descriptor
        return shared

    def _open(self, uuid: str) -> int | None:
        path = self.folder / f"{PREFIX}{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(FileNotFoundError, PermissionError):
            return os.open(path, flags)
        with suppress(PermissionError, FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FOR_EVERYBODY)
            os.fchmod(descriptor, FOR_EVERYBODY)
            return descriptor
        return None

    def close(self) -> None:
        """Let go of everything."""
        while self.held:
            os.close(self.held.popitem()[1])
