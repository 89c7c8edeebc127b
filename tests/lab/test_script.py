"""A user's own script on virtual hosts: its ranks find one another, and its link is seen."""

import json
import shutil
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "integration" / "scripts" / "plain_ddp.py"
LAB = ("--launcher", "lab", "--link", "5mbit")
NUM_PARAMETERS = 64 * 256 + 256 + 256 * 10 + 10


def test_a_script_sends_its_gradients_over_the_link(scalebench, project):
    shutil.copy(SCRIPT, project)
    flags = ("--quick", "--gpus", "1,2", "--no-report", "--out", "r", *LAB)
    scalebench("run", *flags, "--", "plain_ddp.py", code=0)
    rows = json.loads((project / "r" / "summary.json").read_text())["rows"]
    row = next(row for row in rows if row["world_size"] == 2)
    assert row["virtual_hosts"] is True
    assert row["num_parameters"] == NUM_PARAMETERS
    # All of them leave and enter each of 2 hosts; a busy machine is slower, a wrong unit by eight.
    transfer_s = 4 * NUM_PARAMETERS * 8 / (5e6 * 1448 / 1514)
    assert 0.3 * transfer_s < row["exposed_comm_s"]["value"] < 4 * transfer_s
    assert row["payload_bytes"] == 4 * NUM_PARAMETERS
