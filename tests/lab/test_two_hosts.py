"""torchrun on two virtual hosts: ranks that share no loopback interface and meet over the wire."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil
import pytest

from scalebench.launch.external import CONNECT_LIMIT_S
from scalebench.launch.lab.topology import Network
from scalebench.records.files import read_text
from scalebench.spec.world import VirtualHosts
from tests.integration.conftest import SHORT, row_of
from tests.processes import wait_for

TROUBLED = Path(__file__).parents[1] / "integration" / "troubled.py"
RUN = (
    *("run", "ddp", "-k", "static", "--gpus", "2,4,8", "--out", "r"),
    *("--workload", "troubled:healthy", *SHORT),
)


@pytest.fixture
def network(possible):
    made = Network(VirtualHosts(link_bit_per_s=(1_000_000_000,)), 2)
    yield made
    made.close()


def torchrun_on(network, host, folder):
    """Start torchrun on a host that has a name of its own, in a folder of its own."""
    folder.mkdir()
    shutil.copy(TROUBLED, folder)
    user = [f"--user={network.user_namespace}"] if network.user_namespace else []
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"),
        *(f"--node-rank={host}", "--master-addr=10.0.0.1", "--master-port=29511"),
        *("-m", "scalebench", *RUN),
    ]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        return subprocess.Popen(
            [
                *("nsenter", *user, f"--net={network.namespaces[host]}", "unshare", "--uts"),
                *("sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", f"h{host}", *torchrun),
            ],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=err,
        )


def test_ranks_on_two_hosts(network, project):
    folders = [project / f"h{host}" for host in (0, 1)]
    both = [torchrun_on(network, host, folder) for host, folder in enumerate(folders)]
    try:  # longer than the run itself waits for ranks, so that it says who is missing
        wait_for(lambda: all(p.poll() is not None for p in both), CONNECT_LIMIT_S + 60, "both")
    finally:
        families = [
            psutil.Process(p.pid).children(recursive=True) for p in both if p.poll() is None
        ]
        for process in (*both, *chain(*families)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    shown, silence = ((folder / "out").read_text() for folder in folders)
    errors, more = ((folder / "err").read_text() for folder in folders)
    assert [process.returncode for process in both] == [0, 0], errors + more
    assert silence == "" and "scalebench" not in more

    # No file is shared: all of the run is where rank 0 is, the other host's logs included.
    assert not (project / "h1" / "r").exists()
    run = project / "h0" / "r"
    assert "4 ranks on 2 nodes (2 x 2), started by torchrun" in shown
    assert "N = 2: 2, N = 4: 2+2" in " ".join(shown.split())

    placed = {}
    for path in (run / "cells").glob("*.r0.json.gz"):
        cell = json.loads(read_text(path))
        placed[cell["cell"]["case"], cell["cell"]["world_size"]] = [
            (rank["host"], rank["local_rank"]) for rank in cell["ranks"]
        ]
    assert placed["ddp-static-graph", 2] == [("h0", 0), ("h0", 1)]
    assert placed["ddp-static-graph", 4] == [("h0", 0), ("h0", 1), ("h1", 0), ("h1", 1)]
    assert (run / "logs" / "ddp.ddp-static-graph.n4.r0").is_dir()

    row = row_of(run, "ddp-static-graph", 4)
    assert (row["status"], row["correctness"]["status"]) == ("ok", "verified")
    skipped = row_of(run, "ddp-static-graph", 8)
    assert skipped["status"] == "skipped"
    assert skipped["reason"] == "8 ranks are more than the 4 that torchrun started"
    world = json.loads((run / "run.json").read_text())["spec"]["world"]
    assert [(node["host"], node["ranks"]) for node in world["nodes"]] == [
        *(("h0", [0, 1]), ("h1", [2, 3]))
    ]
