"""Places that are hard to run in: no room, no network, no home, a clock that is set back."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scalebench.launch.lab.lab import NoQuota, cpu_hierarchy
from scalebench.machine import own_hierarchy
from scalebench.records.files import read_text
from scalebench.records.paths import RunPaths
from tests.conftest import PATIENCE_S, ended, ran
from tests.examples import cases
from tests.integration.conftest import complaint, mounted, row_of
from tests.processes import wait_for

RUN = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--no-trace", "--batch-size", "16")
SECRET = "hunter2-do-not-tell"


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "small", "size=40m") as folder:
        yield folder


def wait_for_cells(folder, process):
    def two_or_the_end():
        return len(RunPaths(folder).stored_cells()) >= 2 or process.poll() is not None

    wait_for(two_or_the_end, PATIENCE_S, "two cells")
    assert process.poll() is None, process.communicate()


@cases("fault", "full", "removed")
def test_a_disk_that_is_lost_during_a_run(start_scalebench, project, troubled, small_disk, fault):
    out = small_disk / "r"
    flags = ("--workload", "troubled:slow", "--steps", "20", "--repeats", "3", "--no-report")
    process = start_scalebench(*RUN, *flags, "--out", str(out))
    wait_for_cells(out, process)
    if fault == "removed":
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        stored = set()
    else:
        with (small_disk / "filler").open("wb") as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(1 << 16))
                filler.flush()
        stored = RunPaths(out).stored_cells().keys()
    stdout, stderr = ended(process, 5)
    assert "Traceback" not in stderr and "can no longer be written" in stderr
    rest = json.loads(stdout)
    kept = RunPaths(out).stored_cells().keys()
    assert stored <= kept
    beyond = {".".join(map(str, _name(result["cell"]))) for result in rest["results"]}
    if fault == "removed":
        assert len(beyond) >= 2  # what was stored before went with the folder: it is told again
    assert not beyond & kept
    assert "plain" in {row["case"] for row in rest["summary"]["rows"]}


def _name(cell):
    tail = "inspect" if cell["purpose"] == "inspect" else f"r{cell['repeat']}"
    return cell["suite"], cell["case"], f"n{cell['world_size']}", tail


def test_a_disk_that_is_read_only_is_told_before_training(scalebench, tmp_path):
    with mounted(tmp_path / "frozen", "ro") as folder:
        line = complaint(scalebench("run", "ddp", "--out", str(folder / "r")), code=5)
    assert "Read-only file system" in line


# A network namespace that has loopback only, /dev/shm of 64 MB, Python's folder read-only.
BARE = """
set -e
ip link set lo up
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
shift
exec "$@"
"""


def false_wall_clock(folder):
    source, library = Path(__file__).with_name("set_back.c"), folder / "set_back.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@contextmanager
def within(parent, limits):
    """Words before a command that keep it within a cgroup with these limits."""
    group = parent / f"scalebench-test-{os.getpid()}"
    group.mkdir()
    try:
        for name, limit in limits.items():
            (group / name).write_text(limit)
        yield ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]
    finally:
        group.rmdir()


@pytest.fixture
def one_core():
    """A cgroup's quota, else one processor."""
    with ExitStack() as stack:
        try:
            hierarchy = cpu_hierarchy()
            limits = {"cpu.max": "100000 100000"}
            if hierarchy.version == 1:
                limits = {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}
            words = stack.enter_context(within(hierarchy.own, limits))
        except (NoQuota, OSError):  # as of version 2, where the controller is not handed on
            words = ["taskset", "-c", "0"]
        yield words


def test_the_quota_of_a_cgroup_is_what_counts_as_cores(one_core):
    script = "from scalebench.machine import num_cores; print(num_cores())"
    done = ran([*one_core, sys.executable, "-c", script], code=0)
    assert done.stdout == "1\n"


def test_one_core_no_network_no_home_and_a_clock_set_back(project, troubled, tmp_path, one_core):
    """All at once, in one run, with secrets in the environment."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare")
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    environment |= dict.fromkeys(("MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "NCCL_AUTH_KEY"), SECRET)
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "TORCH_HUB_PASSWORD": SECRET}
    clock = tmp_path / "clock"
    clock.write_text("0")
    false_clock = false_wall_clock(tmp_path)
    if false_clock is not None:
        environment |= {"LD_PRELOAD": str(false_clock), "WALL_CLOCK_OFFSET_FILE": str(clock)}
    process = subprocess.Popen(
        [
            *one_core,
            *("unshare", "--net", "--mount", "sh", "-c", BARE, "sh", sys.prefix),
            *(sys.executable, "-m", "scalebench", *RUN),
            *("--workload", "troubled:slow", "--steps", "10", "--quick", "--no-report"),
            *("--out", "r", "--anonymise"),
        ],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    wait_for_cells(project / "r", process)
    clock.write_text("-3600")  # an hour back, while it is running
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    took = time.monotonic() - began
    if "mount" in stderr and process.returncode != 0:
        pytest.skip(f"cannot mount here: {stderr}")
    assert process.returncode == 0, stderr
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert row["status"] == "ok" and row["oversubscribed"] is True
    assert 0.05 < row["step_s"]["value"] < took
    started = []
    for path in RunPaths(project / "r").stored_cells().values():
        cell = json.loads(read_text(path))
        started.append(cell["started"])
        assert 0 < cell["wall_s"] < took
        assert all(0.04 < step < took for rank in cell["ranks"] for step in rank["step_s"])
    if false_clock is not None:
        assert max(started)[:13] != min(started)[:13], "the clock was not set back"
    _no_secret_and_no_name_in(project / "r")
    assert SECRET not in stdout + stderr


def _no_secret_and_no_name_in(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        content = read_text(path).encode() if path.suffix == ".gz" else path.read_bytes()
        assert SECRET.encode() not in content, path
        assert str(run.parent).encode() not in content, path
        assert b'"' + os.uname().nodename.encode() + b'"' not in content, path
    assert oct(run.stat().st_mode & 0o777) == "0o700"


@pytest.fixture
def little_memory():
    hierarchy = own_hierarchy("memory")
    if hierarchy is None:
        pytest.skip("no cgroup limits memory here")
    limit = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
    with ExitStack() as stack:
        try:
            words = stack.enter_context(within(hierarchy.top, {limit: "800000000"}))
        except OSError as error:
            pytest.skip(f"no group with a limit of memory can be made here: {error}")
        yield words


def test_a_script_that_the_cgroup_kills_is_out_of_memory(start_scalebench, project, little_memory):
    (project / "hungry.py").write_text("whole = bytearray(1 << 30)\n")
    flags = ("--gpus", "1", "--quick", "--no-report", "--out", "r")
    process = start_scalebench("run", *flags, "--", "hungry.py", before=little_memory)
    ended(process, 4)
    row = row_of(project / "r", "script", 1)
    assert row["status"] == "oom", row["reason"]
    assert "rank 0: hungry.py was killed by SIGKILL: the kernel's out-of-mem" in row["reason"]
    assert "a cgroup's limit is 800 MB" in row["reason"]


def test_no_pickle_is_read_from_a_run():
    """Checkpoints alone are read by torch, and that as tensors only; dumps without any name."""
    package = Path(__file__).parents[3] / "scalebench"
    plain = package / "trace" / "dumps.py"
    assert not re.search(r"pickle\.(load|loads)\(", plain.read_text())
    for path in package.rglob("*.py"):
        text = path.read_text()
        loads = text.count("torch.load(")
        assert "import pickle" not in text or path == plain, path
        assert loads == len(re.findall(r"torch\.load\([^\n]*weights_only=True\)", text)), path
        assert not loads or path.is_relative_to(package / "worker" / "checkpoints"), path
        assert "shell=True" not in text and "os.system(" not in text, path


def test_no_module_of_the_current_folder_is_executed_unasked(tmp_path):
    """As the installed command runs: without this folder on its path, and so are its ranks."""
    for name in ("json", "torch", "numpy", "socket"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n")
    script = "from scalebench.cli import main; main(['list'])"
    ran(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        code=0,
    )
    assert not list(tmp_path.glob("ran-*"))
