"""The sentence that compares lockstep with training without it."""

import pytest

from scalebench.records.rows.lockstep import LockstepFigures, RankShares
from scalebench.report.tables import lockstep
from tests.builders.races import figures
from tests.builders.summaries import make_plain, make_row

WAITING = LockstepFigures(
    ranks=[
        RankShares(rank=0, compute=0.35, exchange=0.05, wait=0.6),
        RankShares(rank=1, compute=0.95, exchange=0.05, wait=0.0),
    ],
    traced=True,
)
STALE = LockstepFigures(
    ranks=[
        RankShares(rank=0, compute=0.97, exchange=0.02, wait=0.01, num_batches=384),
        RankShares(rank=1, compute=0.9, exchange=0.1, wait=0.0, num_batches=128),
    ],
    traced=False,
    staleness={0: 256, 1: 200, 3: 56},
    num_dropped=7,
)


def rows_of(server_s, server_samples):
    return [
        make_plain(race=figures(8, 2048)),
        make_row("ddp", 2, strategy="ddp", race=figures(8, 2048), lockstep=WAITING),
        make_row(
            "server",
            2,
            strategy="parameter-server",
            race=figures(server_s, server_samples),
            lockstep=STALE,
        ),
    ]


@pytest.mark.parametrize(
    ("server_s", "samples", "told"),
    [
        (
            4,
            2458,
            "Lockstep loses here: server trains 2.40 times the samples per second of ddp, needs"
            " 1.20 times the samples, and is 2.00 times as fast to the target; in ddp, rank 0"
            " waits 60 %",
        ),
        (10, 4096, "Leaving lockstep costs more than waiting here: server trains 1.60 times"),
    ],
)
def test_what_waiting_costs_against_what_staleness_costs(server_s, samples, told):
    assert told in (lockstep.sentence(rows_of(server_s, samples)) or "")
