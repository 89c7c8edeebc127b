"""The self-test for real: it passes here, and an instrument that is broken fails it."""

import json
import sys
from pathlib import Path

import pytest

from scalebench.errors import ExitCode
from tests.conftest import ran

IN_EVERY_FORM = {
    *("timer resolution", "results of collectives", "wrong elements planted"),
    *("link rate, send to recv", "link rate, all-reduce", "slower link to one host"),
    *("clock offset across hosts", "straggler", "slower computation", "slow data loader"),
    *("slow bucket", "budget residual", "probe effect", "smallest change told from noise"),
    "pipeline bubble, 1f1b, 2 ranks",
}

ATTEMPTS = 3
"""A line that noise leaves undecided says nothing of the instrument: it is tried again."""

BROKEN = """
import sys
from scalebench.session import selftest
from scalebench.cli import main
from scalebench.session.selftest import Experiments, losses

{damage}
selftest.PARTS = (Experiments("losses", lambda bench: iter([losses.{line}(bench)])),)
main(["selftest", "--quick", "--seed", "1"])
"""

DAMAGES = {
    "the wrong rank is named": (
        "straggler",
        """
from scalebench.trace.operations import matching
right = matching.Arrival
matching.Arrival = lambda step, kind, rank, late_s: right(step, kind, 1 - rank, late_s)
""",
    ),
    "operations look short": (
        "slow_bucket",
        """
from functools import cached_property
from scalebench.analysis.attribution import LaunchAttribution

def shortened(op):
    return op.model_copy(update={"end_ns": op.start_ns + (op.end_ns - op.start_ns) * 7 // 10})

def short(self):
    return {
        r.rank: r.trace.model_copy(update={"operations": [*map(shortened, r.trace.operations)]})
        for r in self.result.ranks
    }

LaunchAttribution.traces = cached_property(short)
LaunchAttribution.traces.__set_name__(LaunchAttribution, "traces")
""",
    ),
}


def test_this_machine_passes(scalebench):
    done = scalebench("selftest", "--quick", "--json", code=0)
    certificate = json.loads(done.stdout)
    lines = certificate["lines"]
    assert {line["name"] for line in lines} == IN_EVERY_FORM
    for line in lines:
        assert {"name", "injected", "recovered", "error_ratio", "limit", "passed"} <= set(line)
        assert line["passed"] is True or line["reason"], line
    # What does not hang on the noise of this machine is decided everywhere.
    sure = {line["name"]: line["passed"] for line in lines if line["noise_ratio"] is None}
    assert sure["results of collectives"] is True
    assert sure["wrong elements planted"] is True
    assert sure["clock offset across hosts"] is True

    run = scalebench(
        *("run", "ddp", "-k", "plain", "--gpus", "1", "--quick", "--no-report"),
        *("--verbose", "--out", "r"),
        code=0,
    )
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["certificate"]["id"] == certificate["id"]
    assert f"instrument: certificate {certificate['id']}" in " ".join(run.stdout.split())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_instrument_fails_and_the_line_is_named(project, damage):
    line, how = DAMAGES[damage]
    program = project / "broken.py"
    program.write_text(BROKEN.format(damage=how, line=line))
    for _ in range(ATTEMPTS):
        done = ran([sys.executable, str(program)])
        if done.returncode != ExitCode.INCONCLUSIVE:
            break
    assert done.returncode == ExitCode.CELLS_FAILED, (done.stdout, done.stderr)
    assert f"scalebench: {line.replace('_', ' ')} failed: " in done.stderr
    assert "FAIL" in done.stdout
