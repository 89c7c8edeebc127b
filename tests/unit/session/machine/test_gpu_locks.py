import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.local import LocalLauncher
from scalebench.session.machine.gpu_locks import Devices, GpuClaims
from tests.builders.runs import make_info
from tests.examples import cases

HOLDER = """
import sys, pathlib
from scalebench.session.machine.gpu_locks import GpuClaims
GpuClaims([pathlib.Path(sys.argv[1])]).claim(["GPU-1"], False)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_until_it_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
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


def test_jobs_that_share_one_place_see_each_other(tmp_path):
    """Slurm gives each job a /tmp of its own; in a container there may be no /run/lock."""
    first, second, both, gone, same = map(tmp_path.joinpath, ("one", "two", "both", "gone", "same"))
    for place in (first, second, both):
        place.mkdir()
    same.symlink_to(both)
    one, other = GpuClaims([first, both, same]), GpuClaims([gone, second, both])
    assert one.claim(["GPU-0"], allow_busy=False) == []
    with pytest.raises(EnvironmentUnfit, match="in use"):
        other.claim(["GPU-0"], allow_busy=False)
    one.close()
    assert other.claim(["GPU-0"], allow_busy=False) == []
    other.close()


def test_without_a_place_the_run_says_so(tmp_path):
    loose = tmp_path / "others can replace files here"
    loose.mkdir()
    loose.chmod(0o777)
    mine = GpuClaims([loose, tmp_path / "gone"])
    (notice,) = mine.claim(["GPU-0"], allow_busy=False)
    assert notice.startswith("GPU GPU-0 may be shared") and str(loose) in notice
    mine.close()


NOBODY = 65534
PLANTED = {
    "link": lambda path: path.symlink_to(path.parent / "mine"),
    "hard link": lambda path: path.hardlink_to(path.parent / "mine"),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "closed": lambda path: path.touch(0o000),
}


@pytest.fixture
def shared_folder():
    """A directory like /tmp, for the length of a test in which this process is not root."""
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        user = os.geteuid()
        yield Path(folder)
        os.seteuid(user)


@cases("kind", *PLANTED)
def test_what_cannot_be_locked_counts_as_taken(shared_folder, kind):
    path, keep = shared_folder / "scalebench-gpu-GPU-0", shared_folder / "mine"
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


def test_what_others_wrote_into_a_lock_does_not_reach_the_terminal(tmp_path):
    one, other = GpuClaims([tmp_path]), GpuClaims([tmp_path])
    one.claim(["GPU-0"], allow_busy=False)
    (tmp_path / "scalebench-gpu-GPU-0").write_text("\x1b]0;hello")
    with pytest.raises(EnvironmentUnfit, match="process unknown"):
        other.claim(["GPU-0"], allow_busy=False)
    one.close()


def test_a_run_that_waits_leaves_its_gpus_to_others(tmp_path):
    mine, others = GpuClaims([tmp_path]), GpuClaims([tmp_path])
    info = make_info([], environment={"devices": [{"uuid": "GPU-1"}]})
    info = info.model_copy(update={"spec": info.spec.model_copy(update={"device": "cuda"})})
    devices = Devices(LocalLauncher.__new__(LocalLauncher), mine, allow_busy=False)
    assert devices.claim(info) == []
    with pytest.raises(EnvironmentUnfit, match="in use"):
        others.claim(["GPU-1"], allow_busy=False)
    devices.let_go()
    assert others.claim(["GPU-1"], allow_busy=False) == []
    with pytest.raises(EnvironmentUnfit, match="in use"):
        devices.claim(info)
    others.close()
    assert devices.claim(info) == []
    mine.close()
