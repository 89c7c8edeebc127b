"""The gate on a real change: one workload against itself, and against itself 5 % slower.

``make bench-gate-real``. Two versions of a workload of fixed durations are measured alternately
on two virtual hosts: real processes, real DDP, real TCP. The same twice has
to pass, 5 % has to be found. Needs what ``--launcher lab`` needs. About 20 minutes on two quiet
cores.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOAD = '''"""A workload whose samples take a fixed time."""

from scalebench.spec.presets import PacedShape
from scalebench.worker.workloads.paced import build_paced


def model(shard):
    shape = PacedShape(
        name="paced-mine", stages=4, stage_parameters=4096, sample_s={sample_s}, batch_size=8
    )
    return build_paced(shape, shard)
'''
SAMPLE_S = 0.01
SLOWER = 1.05
EXPECTED = {"the same": (1.0, 0), "5 % slower": (SLOWER, 1)}
"""Name → factor on the time of a sample, and the gate's exit code that is right."""


def main() -> None:
    """Ask the gate both questions; exit with 1 where an answer is wrong."""
    wrong = [name for name, (factor, code) in EXPECTED.items() if gate(name, factor) != code]
    print(f"wrong: {', '.join(wrong)}" if wrong else "both answers are right")
    sys.exit(1 if wrong else 0)


def gate(name: str, factor: float) -> int:
    """Measure a workload and one that is slower by a factor alternately; return the exit code."""
    with tempfile.TemporaryDirectory() as place:
        folders = {version: Path(place) / version for version in ("base", "new")}
        for version, folder in folders.items():
            folder.mkdir()
            sample_s = SAMPLE_S * (factor if version == "new" else 1.0)
            (folder / "mine.py").write_text(WORKLOAD.format(sample_s=sample_s))
        print(f"\n{name}", flush=True)
        return subprocess.run(
            [
                *(sys.executable, "-m", "scalebench", "gate", "--interleave"),
                *("--base-dir", str(folders["base"])),
                *("--rounds", "5", "--repeat-until-decided", "10m", "--", "ddp"),
                *("-k", "plain or (ddp and not bucket and not accumulate)"),
                *("--gpus", "1,2", "--workload", "mine:model", "--no-trace"),
                *("--launcher", "lab", "--link", "100mbit", "--cpus-per-rank", "0.5"),
            ],
            cwd=folders["new"],
        ).returncode


if __name__ == "__main__":
    main()
