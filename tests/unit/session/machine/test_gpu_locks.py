"""Two runs on one GPU: the second is refused with the holder's pid, or says that it shares."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.session.machine.gpu_locks import GpuClaims

HOLDER = """
import sys, pathlib
from scalebench.session.machine.gpu_locks import GpuClaims
GpuClaims([pathlib.Path(sys.argv[1])]).claim(["GPU-1"], False)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_until_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        mine = GpuClaims([tmp_path])
        with pytest.raises(EnvironmentUnfit, match=rf"process {holder.pid}\..*--allow-busy"):
            mine.claim(["GPU-0", "GPU-1"], allow_busy=False)
        mine.close()
        shared = mine.claim(["GPU-1"], allow_busy=True)
        assert shared == [f"GPU GPU-1 shared with another scalebench, process {holder.pid}"]
        holder.kill()
    again = GpuClaims([tmp_path])
    assert again.claim(["GPU-1"], allow_busy=False) == [] and len(again.held) == 1
    again.close()


def test_without_a_place_the_run_says_so(tmp_path: Path) -> None:
    loose = tmp_path / "others can replace files here"
    loose.mkdir()
    loose.chmod(0o777)
    mine = GpuClaims([loose, tmp_path / "gone"])
    (notice,) = mine.claim(["GPU-0"], allow_busy=False)
    assert notice.startswith("GPU GPU-0 may be shared") and str(loose) in notice
    mine.close()


NOBODY = 65534
PLANTED: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to(path.parent / "mine"),
    "hard link": lambda path: path.hardlink_to(path.parent / "mine"),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "closed": lambda path: path.touch(0o000),
}


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A directory like /tmp, for the length of a test in which this process is not root."""
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        user = os.geteuid()
        yield Path(folder)
        os.seteuid(user)


@pytest.mark.parametrize("kind", PLANTED)
def test_what_cannot_be_locked_counts_as_taken(shared_folder: Path, kind: str) -> None:
    path = shared_folder / "scalebench-gpu-GPU-0"
    keep = shared_folder / "mine"
    keep.write_text("keep")
    keep.chmod(0o666)
    PLANTED[kind](path)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    mine = GpuClaims([shared_folder])
    with pytest.raises(EnvironmentUnfit) as refused:
        mine.claim(["GPU-0"], allow_busy=False)
    said = str(refused.value)
    assert str(path) in said and "emove it" in said and "--allow-busy" in said
    (notice,) = mine.claim(["GPU-0"], allow_busy=True)
    assert "may be in use" in notice and keep.read_text() == "keep"
