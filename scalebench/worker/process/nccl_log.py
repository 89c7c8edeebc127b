"""NCCL's own log, in launches whose times do not count: asked for before NCCL starts, then read."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.machine import host_links
from scalebench.records.measured.wires import NcclWires

_SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


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
