"""Code that a framework compiles when it starts, and what to do where that fails."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from scalebench.worker.process.failure import Unsupported

_EXTENSION = re.compile(r"(?:JIT load the|building extension|requires the) '?(\w+)")
_BUILD_TEXTS = (
    *("JIT load", "failed to build/load", "Ninja is required"),
    *("Error building extension", "torch_extensions"),
)


@contextmanager
def building_nothing() -> Iterator[None]:
    """Say in one line that a framework wanted to compile something and could not.

    Raises:
        Unsupported: It tried to, and failed.
    """
    try:
        yield
    except (RuntimeError, ImportError, OSError) as error:
        if not any(text in str(error) for text in _BUILD_TEXTS):
            raise
        first_line = (str(error).splitlines() or [""])[0]
        raise Unsupported(
            f"the framework compiles an extension when it starts, and that failed ({first_line}); "
            f"install g++ and ninja, or build it beforehand with {_flag(first_line)}=1 pip install "
            "--no-build-isolation deepspeed"
        ) from error


def _flag(told: str) -> str:
    """Return DeepSpeed's variable that builds the extension of an error's text beforehand."""
    named = _EXTENSION.search(told)
    return f"DS_BUILD_{named[1].removeprefix('deepspeed_').upper()}" if named else "DS_BUILD_OPS"
