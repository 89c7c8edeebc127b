"""The events of a JSON trace, packed or plain, one by one, in memory that does not grow with it.

Why not ijson (3.6, its C backend): it takes 1.9 times as long, with doubles that lose the
nanoseconds 1.6 times, and refuses NaN, tabs in strings, wrong UTF-8 and a byte order mark.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from scalebench.errors import UsageError

CHUNK_BYTES = 1 << 20

LONGEST_VALUE = 1 << 28
"""Characters of one value beyond which the text cannot be a trace any more."""

_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_BETWEEN = re.compile(r"[\s,]*")
_CUT_OFF = "is cut off: its JSON has no end. Write or copy it again"
_CUT_OFF_LITERAL = 12  # characters: a number or a word at the end of a file that was cut off

_HOW_TO_GET_A_TRACE = (
    "A trace is what torch.profiler's export_chrome_trace writes, plain or with gzip."
)


class TraceFile:
    """A file opened as a trace.

    Numbers with a fraction stay text: a double cannot hold microseconds since 1970 to the
    nanosecond.

    Attributes:
        about: What stands next to the events (``distributedInfo``, …); complete once all events
            have been read.
    """

    def __init__(self, path: Path) -> None:
        self.about: dict[str, Any] = {}
        self._path = path
        self._buffer = ""
        self._position = 0
        self._decoder = json.JSONDecoder(parse_float=str, strict=False)

    def events(self) -> Iterator[Any]:
        """Yield every element of ``traceEvents``, or of the list that the file is.

        Raises:
            UsageError: The file cannot be opened, is empty, cut off, no JSON, or no trace.
        """
        try:
            with self._path.open("rb") as raw, opened(raw, self._path) as stream:
                self._chunks = _texts(stream)
                yield from self._top_level()
        except EOFError as error:
            raise self._unusable("is cut off: its gzip stream has no end. Copy it again") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._unusable(f"is damaged: {error}. Copy it again") from error
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror or error}") from error

    def _top_level(self) -> Iterator[Any]:
        first = self._next_character()
        if first == "":
            raise self._unusable(f"is empty. {_HOW_TO_GET_A_TRACE}")
        if first not in "{[":
            raise self._unusable(f"is not JSON. {_HOW_TO_GET_A_TRACE}")
        self._position += 1
        if first == "[":
            yield from self._elements()
            return
        found = False
        while self._next_character() != "}":
            key = self._value()
            if self._next_character() == "":
                raise self._unusable(_CUT_OFF)
            if not isinstance(key, str) or self._next_character() != ":":
                raise self._unusable(f"is not JSON. {_HOW_TO_GET_A_TRACE}")
            self._position += 1
            if key == "traceEvents" and self._next_character() == "[":
                found = True
                self._position += 1
                yield from self._elements()
            else:
                self.about[key] = self._value()
        if not found:
            raise self._unusable(f"is JSON without traceEvents. {_HOW_TO_GET_A_TRACE}")

    def _elements(self) -> Iterator[Any]:
        """Yield the values up to the end of the list that has been opened."""
        decode, between = self._decoder.raw_decode, _BETWEEN.match
        while self._next_character() != "]":
            value, position = self._decoded()
            yield value
            try:
                # The rest of the buffer, without a call per event.
                while True:
                    position = between(self._buffer, position).end()  # type: ignore[union-attr]
                    value, end = decode(self._buffer, position)
                    if end == len(self._buffer):
                        break  # a number may go on in the next piece
                    position = end
                    yield value
            except (ValueError, RecursionError):
                pass
            self._position = position  # from there with care: it may only need more text
        self._position += 1

    def _value(self) -> Any:
        value, self._position = self._decoded()
        return value

    def _decoded(self) -> tuple[Any, int]:
        """Return the value at the position, and where it ends; read on as far as it takes."""
        self._next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
                if end < len(self._buffer) or not self._fill():
                    return value, end
            except json.JSONDecodeError as error:
                if not self._fill():
                    raise self._broken(error) from error
            except (RecursionError, ValueError) as error:  # nested too deeply, a number too long
                raise self._unusable(f"is not a trace ({error}). {_HOW_TO_GET_A_TRACE}") from error

    def _next_character(self) -> str:
        """Skip blanks and commas; return what follows, or nothing at the end of the file."""
        while True:
            self._position = _BETWEEN.match(self._buffer, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._fill():
                return ""

    def _fill(self) -> bool:
        """Read on; return False at the end of the file."""
        if len(self._buffer) - self._position > LONGEST_VALUE:
            raise self._unusable(f"is not JSON. {_HOW_TO_GET_A_TRACE}")
        kept = self._buffer[self._position :]
        more = []
        wanted = max(1, len(kept))  # twice as much each time, so that retries stay cheap
        while wanted > 0 and (text := next(self._chunks, "")):
            more.append(text)
            wanted -= len(text)
        self._buffer, self._position = "".join((kept, *more)), 0
        return bool(more)

    def _broken(self, error: json.JSONDecodeError) -> UsageError:
        is_at_end = error.pos >= len(error.doc.rstrip()) - _CUT_OFF_LITERAL
        if is_at_end or error.msg.startswith("Unterminated"):
            return self._unusable(_CUT_OFF)
        return self._unusable(f"is not JSON ({error.msg}). {_HOW_TO_GET_A_TRACE}")

    def _unusable(self, why: str) -> UsageError:
        return UsageError(f"{self._path} {why.rstrip('.')}.")


def _texts(stream: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    """Yield the file's text in pieces, none of them empty."""
    decoder = getincrementaldecoder("utf-8-sig")(errors="replace")
    while data := stream.read(CHUNK_BYTES):
        if text := decoder.decode(data):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


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
