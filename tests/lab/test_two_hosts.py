"""torchrun on two virtual hosts: ranks that share no loopback interface and meet over the wire."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scalebench.launch.external.launcher import CONNECT_LIMIT_S
from scalebench.launch.lab.topology import Network
from scalebench.records.storage.files import read_text
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.integration.conftest import SHORT, row_of

TROUBLED = Path(__file__).parents[1] / "integration" / "troubled.py"
RUN = (
    *("run", "ddp", "-k", "static", "--gpus", "2,4,8", "--out", "r"),
    *("--workload", "troubled:healthy", *SHORT),
)
LONGEST_S = CONNECT_LIMIT_S + 60


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
    return subprocess.Popen(
        [
            *("nsenter", *user, f"--net={network.namespaces[host]}", "unshare", "--uts"),
            *("sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", f"h{host}", *torchrun),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs_of(both):
    """What both wrote; longer than the run itself waits for ranks, so that it says who is missing.

    A host that ends early leaves the other one waiting: both are read at once, and shown.
    """
    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(process.communicate) for process in both]
        if wait(reading, timeout=LONGEST_S).not_done:
            for process in both:
                end_with_children(process.pid)
            told = [(p.returncode, one.result()) for p, one in zip(both, reading, strict=True)]
            pytest.fail(f"still running after {LONGEST_S:.0f} s: {told}")
        return [one.result() for one in reading]


def end_with_children(pid):
    """Kill a process and all that it started: torchrun's ranks would keep its output open."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_ranks_on_two_hosts(network, project):
    both = [torchrun_on(network, host, project / f"h{host}") for host in (0, 1)]
    (shown, errors), (silence, more) = outputs_of(both)
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
