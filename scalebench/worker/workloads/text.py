"""A text corpus that every machine has: the sources of Python's standard library."""

import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from scalebench.errors import EnvironmentUnfit

CORPUS_BYTES = 4_000_000
HELD_OUT_BYTES = 1_000_000
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
}
"""Not the library, or not in every distribution's package of it."""


def load_corpus() -> torch.Tensor:
    """Return the first ``CORPUS_BYTES`` of the library's sources, in the order of their paths.

    The text depends on nothing but the Python version.

    Returns:
        Bytes, shape ``[<= CORPUS_BYTES]``, uint8, on CPU.

    Raises:
        EnvironmentUnfit: The sources are not installed, or cannot be read.
    """
    return _read(sysconfig.get_paths()["stdlib"], CORPUS_BYTES)


def load_held_out() -> torch.Tensor:
    """Return the sources that follow the corpus: text of other modules.

    Returns:
        Bytes, shape ``[<= HELD_OUT_BYTES]``, uint8, on CPU.

    Raises:
        EnvironmentUnfit: The sources are not installed, cannot be read, or end before.
    """
    text = _read(sysconfig.get_paths()["stdlib"], CORPUS_BYTES + HELD_OUT_BYTES)
    held_out = text[CORPUS_BYTES:]
    if not len(held_out):
        raise EnvironmentUnfit(
            f"The sources of Python's standard library have fewer than {CORPUS_BYTES} bytes: "
            "nothing is left to evaluate on. Use another workload (cnn, mlp)."
        )
    return held_out


@cache
def _read(library: str, num_bytes: int) -> torch.Tensor:
    root = Path(library)
    corpus = bytearray()
    try:
        for path in _sources(root):
            corpus += path.read_bytes()
            if len(corpus) >= num_bytes:
                break
    except OSError as error:
        raise _unfit(root, str(error)) from error
    if not corpus:
        raise _unfit(root, "there are no *.py files")
    return torch.frombuffer(corpus[:num_bytes], dtype=torch.uint8)


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the ``*.py`` files below ``folder``, in an order that is the same everywhere."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.is_file():
            yield path
        elif path.name not in _SKIPPED_FOLDERS and path.is_dir() and not path.is_symlink():
            yield from _sources(path)


def _unfit(root: Path, reason: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"The gpt workloads train on the sources of Python's standard library, but in {root} "
        f"{reason}. Use a Python that has its *.py files, or another workload (cnn, mlp)."
    )
