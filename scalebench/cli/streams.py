"""The standard streams: closed, full or without a reader, they crash no command."""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from scalebench.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def settle_streams() -> None:
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
