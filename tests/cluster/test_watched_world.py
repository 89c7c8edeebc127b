"""Under a launcher that gives each process one GPU, all GPUs are watched, here and elsewhere."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import ran
from tests.standins.nvml import A, B, library, write_answers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("where", [(), ("apart",)], ids=["one machine", "two machines"])
def test_every_ranks_gpu_is_watched(tmp_path, where):
    """Each process's NVML shows its own GPU alone, as containers and cgroups have it."""
    answers = []
    for rank, other in enumerate((B, A)):
        path = write_answers(tmp_path / str(rank))
        path.write_text(path.read_text().replace(f"device {other} x\n", ""))
        answers.append(os.fspath(path))
    command = ("-m", "torch.distributed.run", "--nproc-per-node=2", "-m")
    done = ran(
        [sys.executable, *command, "tests.cluster.watched_world", *answers, *where],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": os.fspath(library().parent),
            "OMP_NUM_THREADS": "1",
            "MASTER_PORT": "29518",
        },
    )
    assert done.returncode == 0, done.stderr
    node = json.loads(done.stdout.splitlines()[-1])
    first, second = node["devices"]
    assert [d["uuid"] for d in (first, second)] == [A, B]
    assert [d["states"]["power_w"][0] for d in (first, second)] == [300.0, 450.0]
    times = [t for d in (first, second) for t in d["states"]["time_ns"]]
    assert node["begun_ns"] <= min(times) and max(times) <= node["ended_ns"]
    assert node["unavailable"] == {}
    assert node["host"]["busy_cpu_s"] > 0
    if not where:  # a sibling is of this launch; torchrun itself is not
        traffic = first["traffic"]
        assert (traffic["own_processes"][0], traffic["foreign_processes"][0]) == (1, 1)
