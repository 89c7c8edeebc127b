"""This process: its standard streams, and its place in a world of others that speak through it."""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.submission import LAUNCHERS
from scalebench.records.secret import TRUST, TRUSTED, given_secret

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from scalebench.launch.base import Launcher
    from scalebench.spec.world import WorldMember


def make_streams_safe() -> None:
    """Give this process three standard streams that can be used whatever becomes of them.

    A closed one becomes the null device, so that no file which is opened later takes its number.
    Standard output drops what its reader does not want (``| head``); standard error drops whatever
    cannot be written. Both write what is no text, as names of files may be, in escaped form.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _opened(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _opened(2, sys.stderr)


def _opened(descriptor: int, former: io.TextIOBase | None) -> io.TextIOWrapper:
    outlet = _Outlet(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=(former and former.encoding) or "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or outlet.isatty(),
    )


class _Outlet(io.FileIO):
    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, data: "ReadableBuffer", /) -> int | None:  # type: ignore[override]
        """Write, or lead this and all that follows to the null device.

        Raises:
            EnvironmentUnfit: These are results, and somebody may wait for them.
        """
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if self.fileno() == 1 and error.errno != errno.EPIPE:
                raise EnvironmentUnfit(
                    f"Standard output cannot be written: {error.strerror}. Results that were "
                    "stored are kept."
                ) from error
        return len(memoryview(data))


def place_in_world(flags: dict[str, Any]) -> "WorldMember | None":
    """Return this process's place in the world around it, or None: there is none.

    Only the first process of a world comes back from here; the others follow it.

    Raises:
        UsageError: A launcher was asked for as well, the environment contradicts itself, or the
            secret in it is too short.
    """
    from scalebench.launch.external import find_member, run_agent

    member = find_member(os.environ)
    if member is None:
        return None
    if flags["launcher"] is not None:
        raise UsageError(
            f"{member.launcher} has started this process as rank {member.rank} of "
            f"{member.world_size}, and --launcher {flags['launcher']} would start more ranks. "
            f"Leave out --launcher, or run scalebench outside of {member.launcher}."
        )
    # The processes that are started from here read it.
    os.environ[TRUST] = TRUSTED if flags["trust_network"] else ""
    given_secret(os.environ)
    if member.rank:
        run_agent(member)
    return member


def launcher_for(flags: dict[str, Any], member: "WorldMember | None") -> "Launcher | None":
    """Return the launcher of a world, or the one that was asked for; None: the default one."""
    if member is not None:
        from scalebench.launch.external import ExternalLauncher

        return ExternalLauncher(member)
    return None if flags["launcher"] is None else LAUNCHERS[flags["launcher"]].start()
