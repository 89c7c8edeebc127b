"""Two runs on one GPU: the second is refused with the holder's pid, or says that it shares."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.local import LocalLauncher
from scalebench.session.claim import Devices
from scalebench.session.gpu_locks import GpuClaims
from tests.builders.runs import make_info

HOLDER = """
import sys, pathlib
from scalebench.session.gpu_locks import GpuClaims
GpuClaims(pathlib.Path(sys.argv[1])).claim(["GPU-1"], False)
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
        mine = GpuClaims(tmp_path)
        with pytest.raises(EnvironmentUnfit, match=rf"process {holder.pid}\..*--allow-busy"):
            mine.claim(["GPU-0", "GPU-1"], allow_busy=False)
        mine.close()
        shared = mine.claim(["GPU-1"], allow_busy=True)
        assert shared == [f"GPU GPU-1 shared with another scalebench, process {holder.pid}"]
        holder.kill()
    again = GpuClaims(tmp_path)
    assert again.claim(["GPU-1"], allow_busy=False) == [] and len(again.held) == 1
    again.close()


def test_one_session_measures_on_its_devices_again(tmp_path: Path) -> None:
    mine = GpuClaims(tmp_path)
    for _ in range(2):
        assert mine.claim(["GPU-0", "GPU-1"], allow_busy=False) == []
    assert len(mine.held) == 2
    mine.close()
    other = GpuClaims(tmp_path)
    assert other.claim(["GPU-0"], allow_busy=False) == []
    other.close()


def test_different_devices_do_not_meet_and_odd_names_stay_in_the_folder(tmp_path: Path) -> None:
    one, other = GpuClaims(tmp_path), GpuClaims(tmp_path)
    one.claim(["GPU-0", "../../etc/passwd"], allow_busy=False)
    other.claim(["GPU-1"], allow_busy=False)
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["scalebench-gpu-GPU-0", "scalebench-gpu-GPU-1", "scalebench-gpu-______etc_passwd"]
    )
    one.close()
    other.close()


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    (tmp_path / "scalebench-gpu-GPU-0").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        GpuClaims(tmp_path).claim(["GPU-0"], allow_busy=False)
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_run_that_waits_leaves_its_gpus_to_others(tmp_path: Path) -> None:
    mine, others = GpuClaims(tmp_path), GpuClaims(tmp_path)
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
