"""What a communication hook begins in a callback, on gloo's own threads, is in the trace."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE_S
from tests.integration.callback_ranks import NUM_STEPS

ROOT = Path(__file__).parents[2]


def test_collectives_begun_in_callbacks_are_seen_on_every_rank(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.callback_ranks", str(rank), str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    assert [rank.wait(PATIENCE_S) for rank in ranks] == [0, 0]
    for rank in range(2):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert sorted(map(tuple, seen)) == sorted(
            ("all_reduce", 1024 * n) for n in (1, 2, 3) for _ in range(NUM_STEPS)
        )
