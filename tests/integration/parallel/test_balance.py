"""Shares of the global batch that follow the ranks' speed, with ranks that really are unequal."""

from tests.integration.conftest import row_of

UNEQUAL = """
import time

import torch
from scalebench import Case, Ddp, Suite, Workload

SAMPLE_S = [0.01, 0.03]

def workload(shard):
    data = torch.Generator().manual_seed(shard.rank)
    x = torch.randn(shard.batch_size, 8, generator=data)

    def loss(module, batch):
        time.sleep(SAMPLE_S[shard.rank] * len(batch[0]))
        return torch.nn.functional.mse_loss(module(batch[0]), batch[1])

    return Workload(module=torch.nn.Linear(8, 1), batches=[(x, x[:, :1])], loss=loss)

SUITE = Suite(
    name="unequal",
    question="Do shares follow the speed of the ranks?",
    cases=(
        Case(name="ddp", strategy=Ddp()),
        Case(name="balanced", strategy=Ddp(balance="measured", balance_every=3, accumulate=2)),
        Case(
            name="static",
            strategy=Ddp(balance="measured", balance_every=3, static_graph=True),
        ),
    ),
    workload="unequal:workload",
    batch_size=16,
)
"""


def test_the_slow_rank_gets_fewer_samples_and_the_gradient_stays(scalebench, project):
    """A sample takes rank 1 three times as long: of 16, the ranks are done together at 12 and 4."""
    (project / "unequal.py").write_text(UNEQUAL)
    done = scalebench(
        *("run", "unequal.py", "--gpus", "1,2", "--steps", "6", "--quick", "--no-trace"),
        *("--no-report", "--out", "r"),
    )
    assert done.returncode == 0, done.stderr
    for case in ("balanced", "static"):  # as DDP sees it, the graph is the same for any share
        row = row_of(project / "r", case, 2)
        assert row["correctness"]["status"] == "verified"
        found = row["balance"]
        fast, slow = found["shares"]
        assert (fast, slow) in {(10, 6), (11, 5), (12, 4), (13, 3)}
        assert found["history"][0] == [0, [8, 8]] and found["history"][-1][1] == [fast, slow]
        assert found["sample_s"][0] >= 0.01 and found["sample_s"][1] >= 0.03
        assert found["ideal_s"] <= found["balanced_s"] < found["equal_s"]
    alone, equal = row_of(project / "r", "balanced", 1), row_of(project / "r", "ddp", 2)
    assert alone["balance"] is None and alone["correctness"]["status"] == "verified"
    assert equal["unavailable"]["balance"] == "the ranks have equal shares"
