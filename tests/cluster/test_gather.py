"""What ranks have recorded comes to rank 0 over the store, whole and from everyone."""

import json
import sys
from pathlib import Path

from tests.conftest import ran

ROOT = Path(__file__).parents[2]


def test_every_record_arrives_whole():
    done = ran(
        [sys.executable, "-m", "benchmarks.gather", "--ranks", "8", "--steps", "50"], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["records"], told["whole"]) == (8, 8)
