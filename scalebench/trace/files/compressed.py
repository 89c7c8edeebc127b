"""Opens a file that may be compressed: with gzip, or with Zstandard."""

import gzip
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import IO

from scalebench.errors import UsageError

_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(raw: BufferedReader, path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open what a file holds, by its first bytes.

    Raises:
        UsageError: It is compressed with Zstandard, and nothing here can read that; or damaged.
    """
    begins = raw.peek(4)
    if begins.startswith(_GZIP):
        with gzip.open(raw) as stream:
            yield stream
    elif begins.startswith(_ZSTANDARD):
        yield from _zstandard(raw, path)
    else:
        yield raw


def _zstandard(raw: BufferedReader, path: Path) -> Iterator[IO[bytes]]:
    """Open with Python's own module (3.14), the package ``zstandard``, or the program ``zstd``."""
    for module in ("compression.zstd", "zstandard"):
        try:
            found = import_module(module)
        except ImportError:
            continue
        with found.open(raw, "rb") as stream:
            yield stream
        return
    program = shutil.which("zstd")
    if program is None:
        raise UsageError(
            f"{path} is compressed with Zstandard, which nothing here reads. Install the program "
            "zstd or the package zstandard, or decompress the file."
        )
    os.lseek(raw.fileno(), 0, os.SEEK_SET)  # the program reads the file, not what was read ahead
    with subprocess.Popen(
        [program, "--decompress", "--stdout", "--quiet"],
        stdin=raw,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as decompressing:
        assert decompressing.stdout is not None
        try:
            yield decompressing.stdout
        finally:  # what is wrong with the file explains what is wrong with its text
            decompressing.stdout.close()
            if decompressing.wait() > 0:
                raise UsageError(f"{path} is damaged: zstd cannot decompress it. Copy it again.")
