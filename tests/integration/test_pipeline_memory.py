"""What a pipeline's fullest rank takes, held against what was predicted from one rank alone."""

from pathlib import Path

import pytest

from tests.conftest import Scalebench
from tests.integration.conftest import SHORT, row_of


def test_a_pipelines_memory_is_predicted(scalebench: Scalebench, project: Path) -> None:
    cases = "plain or gpipe or 1f1b"
    done = scalebench("run", "pipeline", "-k", cases, "--gpus", "1,2", *SHORT, "--out", "r")
    assert done.returncode == 0, done.stderr
    peaks, kept = {}, {}
    for case in ("gpipe", "1f1b", "interleaved-1f1b"):
        for n in (1, 2):
            row = row_of(project / "r", case, n)
            peaks[case, n] = row["peak_memory_bytes"]
            assert row["predicted_memory_bytes"] == pytest.approx(peaks[case, n], rel=0.06)
            kept[case, n] = row["memory"]["activations_bytes"]
    # What the schedules promise: all four microbatches, against as many as there are ranks.
    assert kept["1f1b", 2] < 0.55 * kept["gpipe", 2]
    assert peaks["1f1b", 2] < peaks["gpipe", 2]
