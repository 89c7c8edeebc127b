"""Scripts as people write them: steps under scalebench, and by their own clocks under torchrun.

``python -m benchmarks.scripts_by_their_own_clock [SCRIPT ...]``, of tests/integration/scripts, by
default those that need torch alone; a minute each. Both run on two ranks at the same time, in turns
of half a second, as in `framework_script_vs_case`. What evaluates or saves is longer than usual
steps and in no median. Target: the 95 % interval of the difference lies within ± 3 %.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks.framework_script_vs_case import WARM_UP, neighbours, send, steps_of, take_turns
from benchmarks.paired import paired_difference
from benchmarks.verdict import print_section

SCRIPTS = Path("tests/integration/scripts").resolve()
DEFAULT = ("nanogpt", "mingpt", "imagenet", "fsdp2", "tensor_parallel")
STEPS = {"nanogpt_like": "100", "fsdp2_like": "100"}
LARGEST = 0.03
MEASURE = ("-m", "scalebench", "run", "--gpus", "2", "--quick", "--no-trace", "--no-report")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start(folder: Path, way: str, command: list[str]) -> "subprocess.Popen[str]":
    """Start one of both, with a folder of its own to write to."""
    (here := folder / way).mkdir()
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / f"{way}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=log, text=True, cwd=here, env=variables
        )


def own_steps(log: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each step of the rank that printed first, ns, after the first ones."""
    found = re.search(r"ENDS (\[[^]]*\])", log)
    assert found, log[-2000:]
    yield from list(pairwise(json.loads(found[1])))[WARM_UP:]


def pairs_of(name: str, folder: Path) -> list[tuple[float, float]]:
    """Return the steps of a script under torchrun and under scalebench, by neighbouring turns."""
    script = str(SCRIPTS / f"{name}.py")
    row = f"{name.replace('_', '-')}.script.n2"
    steps = ("--steps", STEPS.get(name, "300"), "--only", row, "--out", str(folder / "run"))
    runs = {
        "scalebench": start(folder, "scalebench", [*MEASURE, *steps, "--", script, "."]),
        "torchrun": start(folder, "torchrun", [*TORCHRUN, script, "."]),
    }
    turns = take_turns(runs, until=all)
    send(runs["torchrun"], signal.SIGCONT)
    runs["torchrun"].send_signal(signal.SIGINT)  # its ranks leave, and print what they have
    runs["torchrun"].wait(timeout=60)
    assert not runs["scalebench"].wait(), (folder / "scalebench.log").read_text()
    (record,) = (folder / "run").glob(f"cells/{row}.r0.json.gz")
    own = own_steps((folder / "torchrun.log").read_text())
    return neighbours(turns, {"torchrun": list(own), "scalebench": list(steps_of(record))})


def main(names: list[str]) -> None:
    """Measure one script after the other, and print how the two differ."""
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            pairs = pairs_of(name, Path(folder))
        own, ours = zip(*pairs, strict=True)
        apart = paired_difference(ours, own)
        verdict = "PASS" if apart.low >= -LARGEST and apart.high <= LARGEST else "INCONCLUSIVE"
        if apart.low > LARGEST or apart.high < -LARGEST:
            verdict = "FAIL"
        lines.append(f"{name}: {len(pairs)} pairs, {apart} longer under scalebench: {verdict}")
        print(lines[-1], file=sys.stderr)
    print_section("Steps under scalebench beside the scripts' own clocks under torchrun", *lines)


if __name__ == "__main__":
    main(sys.argv[1:] or [f"{name}_like" for name in DEFAULT])
