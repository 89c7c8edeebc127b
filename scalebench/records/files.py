"""Run folders and messages: files that no reader sees half written, sockets between processes."""

import gzip
import hashlib
import json
import os
import re
import socket
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scalebench.errors import UsageError
from scalebench.units import bytes_

Model = TypeVar("Model", bound=BaseModel)
LARGEST_BYTES = 256 * 1024 * 1024
"""A stored record of any kind is smaller: the traces of a launch make some hundred kilobytes."""

_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = re.compile(rb"0e000+[,\]}\s]")
_TOO_LARGE = 10**99
"""The square of such a number may not fit a double."""


class Channel:
    """Messages over a socket: one object of JSON in a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._begun = b""

    def fileno(self) -> int:
        """Return what `select` waits for."""
        return self.connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises OSError when the other end is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data; return the messages that are whole by then. None: the other hung up."""
        data = self.connection.recv(1 << 16)
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename. Text becomes UTF-8."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, str):
                content = content.encode(errors="backslashreplace")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_model(path: Path, model: BaseModel, indent: int | None = 1) -> None:
    """Write a record as JSON, whole or not at all; ``indent=None``: on one line, half as large.

    A name that ends in ``.gz`` is compressed; the same record is the same bytes.
    """
    write_atomic(path, packed(path, model.model_dump_json(indent=indent) + "\n"))


def write_checked(path: Path, model: BaseModel, indent: int | None = 1) -> None:
    """Write a record as `write_model` does, with a checksum; see `with_checksum`."""
    write_atomic(path, packed(path, with_checksum(model.model_dump_json(indent=indent))))


def packed(path: Path, text: str) -> bytes:
    """Return what a file of this name holds of a text: with gzip where it ends in ``.gz``."""
    content = text.encode(errors="backslashreplace")
    return gzip.compress(content, 6, mtime=0) if path.suffix == ".gz" else content


def read_checked(path: Path, kind: type[Model], required: bool) -> Model:
    """Read a record whose checksum has to be right.

    Args:
        path: The file.
        kind: What it holds.
        required: It has to have one; files of older versions have none.

    Raises:
        UsageError: It is not what was written.
    """
    try:
        text = read_text(path)
        if not verify_checksum(text) and required:
            raise ChecksumMismatch("its checksum is missing")
    except ChecksumMismatch as error:
        raise UsageError(f"{path} is damaged: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    return read_model(path, kind, text=text)


def read_model(
    path: Path, kind: type[Model], strict: bool = False, text: str | None = None
) -> Model:
    """Read a record and check it against its schema.

    Args:
        path: The file.
        kind: Its schema.
        strict: Take no value for another type: no ``true`` or ``"5"`` for a number.
        text: What is in the file, where it was read already.

    Raises:
        UsageError: The file is not what it should be; the text names the first field at fault.
    """
    try:
        text = read_text(path) if text is None else text
        if _may_be_huge(text) and (where := next(_huge_in(json.loads(text)), None)):
            raise UsageError(f"{path} is damaged: {where[:200]}: a number of 100 digits or more.")
        return kind.model_validate_json(text, strict=strict or None)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path} is damaged: {where}: {first['msg']}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


def _may_be_huge(text: str) -> bool:
    """Tell whether a text has 100 digits in a row or a number with an exponent of three digits."""
    alike = text.encode(errors="surrogatepass").translate(_DIGITS_ALIKE, b"+")
    return b"0" * 100 in alike or _LARGE_EXPONENT.search(alike) is not None


def _huge_in(value: Any, where: str = "") -> Iterator[str]:
    """Yield the places of the numbers that are too large."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from _huge_in(part, f"{where}.{key}".lstrip("."))
    elif isinstance(value, int | float) and abs(value) >= _TOO_LARGE:
        yield where


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; nothing else is opened or waited for.

    A named pipe without a writer would be waited for without end, and so would a terminal.

    Args:
        path: The file.
        flags: As for `os.open`.

    Raises:
        UsageError: It is there and is no regular file.
        OSError: It cannot be opened.
    """
    with suppress(FileNotFoundError):  # which `os.open` tells, or makes
        _require_regular(path, path.stat().st_mode)
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is not a regular file. Give a file.")


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """Return the text of a record; a file that cannot be one is not even opened.

    A file whose name ends in ``.gz`` is unpacked, no further than to ``largest`` bytes.

    Raises:
        UsageError: It is no regular file, larger than ``largest`` bytes, or cut off.
        OSError: It cannot be read.
        UnicodeDecodeError: It is no text.
    """
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size) if size <= largest else b""
    if path.suffix == ".gz" and size <= largest:
        content = _unpacked(path, content, largest)
        size = len(content)
    if size > largest:
        raise UsageError(
            f"{path} is too large: {bytes_(size)}, where at most {bytes_(largest)} are "
            "read. Give the file that scalebench wrote."
        )
    return content.decode()


def _unpacked(path: Path, content: bytes, largest: int) -> bytes:
    """Return what is packed in ``content``, or its first ``largest + 1`` bytes."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # with gzip's own checksum
    try:
        text = unpacker.decompress(content, largest + 1)
    except zlib.error as error:
        raise UsageError(f"{path} is damaged: {error}.") from error
    if len(text) <= largest and (not unpacker.eof or unpacker.unused_data):
        raise UsageError(f"{path} is damaged: it does not end where its content ends.")
    return text


_SEAL = re.compile(r',\s*"sha256":\s*"([0-9a-f]{64})"\s*\}\s*')


class ChecksumMismatch(ValueError):
    """A text does not match its checksum."""


def with_checksum(text: str) -> str:
    """Return a JSON object with its seal.

    Args:
        text: An object that is not empty.
    """
    body = text.rstrip()
    if not body.endswith("}") or len(body.removesuffix("}").strip()) < 2:
        raise ValueError("only a non-empty object gets a checksum")
    body = body.removesuffix("}").rstrip()
    return f'{body},"sha256":"{_digest(body)}"}}\n'


def verify_checksum(text: str) -> bool:
    """Return whether a text has a checksum.

    Raises:
        ChecksumMismatch: It has one, and the text does not match it.
    """
    end = text.rfind(",", 0, max(0, text.rfind('"sha256"')))
    match = _SEAL.fullmatch(text, max(0, end))
    if match is None:
        return False
    if _digest(text[:end]) != match[1]:
        raise ChecksumMismatch("its checksum does not match its content")
    return True


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", errors="surrogatepass")).hexdigest()
