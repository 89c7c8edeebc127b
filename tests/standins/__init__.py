"""Libraries that stand in for what needs a GPU, compiled by the tests and kept between them."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REQUIRED = os.environ.get("SCALEBENCH_STANDIN_TESTS") == "required"


def built(source: str, name: str, flags: Sequence[str] = ()) -> Path:
    """Return the library made of a source beside this file, alone in its folder.

    The test is skipped where there is no compiler, unless ``SCALEBENCH_STANDIN_TESTS=required``
    says that it may not be.

    Args:
        source: File name, of C.
        name: Of the library.
        flags: For the compiler.
    """
    if shutil.which("gcc") is None:
        (pytest.fail if REQUIRED else pytest.skip)(f"no gcc to build {source} with")
    key = hashlib.sha256((HERE / source).read_bytes() + repr(flags).encode()).hexdigest()[:16]
    root = Path(tempfile.gettempdir()) / f"scalebench-standins-{os.getuid()}"
    library = root / key / name
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        made = library.with_name(f"{name}.{os.getpid()}")
        command = ["gcc", "-shared", "-fPIC", "-o", os.fspath(made), os.fspath(HERE / source)]
        subprocess.run([*command, *flags], check=True)
        made.replace(library)
    return library
