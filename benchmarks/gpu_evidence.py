"""All that one GPU can show, unattended and in pieces: ``make gpu-evidence``.

Each step is a command of its own with a limit of its own. What was done stands in
``gpu-evidence.json`` beside the run folders; called again, the rest is done, and a run that was cut
off goes on where it was. ``--short`` stops after the steps that show most, within eight minutes; a
call without it does the rest. ``--budget`` ends a call early. ``gpu-evidence.md`` is written after
every step: the verdict on each claim (`benchmarks.gpu_claims`), what was measured, and where not,
why not. ``--dry`` is the CPU's twin of the whole, in minutes, for a test.
"""

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu_claims import judge

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
TOTAL_S = 40 * 60.0
SHORT_S = 7.25 * 60.0
"""A run that is cut off then has half a minute to keep its results."""
TAIL = 4000
"""Characters that are kept of what a step printed."""
COLUMNS = ("step_s", "throughput", "mfu", "energy_j_per_sample", "probe_effect", "trace_overhead")


@dataclass(frozen=True)
class Step:
    """One piece of evidence.

    Attributes:
        name: Of the step, and of the run's folder.
        arguments: Of ``scalebench run`` where ``is_run``, else the whole command.
        limit_s: After so long it is interrupted; a run keeps what it has.
        is_short: It belongs to the short part.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    is_run: bool = True
    is_short: bool = False

    def command(self, folder: Path) -> list[str]:
        """Return what to run; a run that was begun before is resumed."""
        if not self.is_run:
            return list(self.arguments)
        run = [PYTHON, "-m", "scalebench", "run"]
        target = folder / self.name
        if (target / "run.json").exists():
            return [*run, "--resume", str(target)]
        return [*run, *self.arguments, "--out", str(target)]


def steps(folder: Path, dry: bool) -> list[Step]:
    """Return what is to be done: the short part, then the rest, each the most telling first."""
    probe = (PYTHON, "-m", "benchmarks.gpu_probes", *(["--cpu"] if dry else []))
    trace = str(folder / "gpu-trace.json")
    cpu = ("--device", "cpu", "--quick", "--batch-size", "16")

    def run(name: str, suite: str, only: str, workload: str, minutes: float, *more: str) -> Step:
        there = ("--workload", workload, *more)
        here = ("--workload", "cnn-8" if workload.startswith("cnn") else "gpt-tiny", *cpu)
        sizes = () if "--gpus" in more else ("--gpus", "1")
        extra = tuple(x for x in more if x in ("--oversubscribe", "--max-batch")) if dry else ()
        if dry and "--gpus" in more:
            extra = ("--gpus", "1,2")
        if "--max-batch" in more and dry:
            here = (*here[:2], "--device", "cpu", "--quick", "--memory-limit", "40MB")
        chosen = (suite, "-k", only, *sizes, *(here + extra if dry else there))
        return Step(name, chosen, 60.0 * minutes)

    only = "{0} and not accumulate and not bucket and not shard"
    once = ("--repeats", "1", "--no-compile")
    shared = ("--gpus", "1,2", "--oversubscribe", "--quick", "--no-compile")
    largest = ("--max-batch", "--quick", "--no-compile", "--memory-limit", "20GB")
    codecs = "none or powersgd or quantise-8bit"
    short = [
        Step("gpu-doctor", (PYTHON, "-m", "scalebench", "doctor"), 60, is_run=False),
        Step("gpu-power", (*probe, "power"), 60, is_run=False),
        run("gpu-ddp-short", "ddp", only.format("ddp"), "gpt-124m", 2.5, "--repeats", "1"),
        run("gpu-fsdp-short", "fsdp", only.format("fsdp"), "gpt-124m", 2.5, "--quick"),
        Step("gpu-trace", (*probe, "trace", trace), 90, is_run=False),
        run("gpu-shared-by-two", "ddp", only.format("ddp"), "gpt-tiny", 1.5, *shared),
        run("gpu-max-batch", "ddp", "plain", "gpt-124m", 2, *largest),
    ]
    rest = [
        run("gpu-ddp-gpt-124m", "ddp", only.format("ddp"), "gpt-124m", 8, "--repeats", "2"),
        Step("gpu-tests", (PYTHON, "-m", "pytest", "tests", "-m", "gpu", "-q"), 300, is_run=False),
        Step("gpu-trace-read", (PYTHON, "-m", "scalebench", "trace", trace), 60, is_run=False),
        run("gpu-fsdp-gpt-1.3b", "fsdp", only.format("fsdp"), "gpt-1.3b", 8, "--repeats", "2"),
        run("gpu-compression-gpt-124m", "compression", codecs, "gpt-124m", 6, *once),
        run("gpu-ddp-cnn-56", "ddp", only.format("ddp"), "cnn-56", 4, "--repeats", "2"),
    ]
    every = [*(replace(step, is_short=True) for step in short), *rest]
    patience = 4 if dry else 1  # a CPU that others use, too
    return [replace(step, limit_s=patience * step.limit_s) for step in every]


@click.command()
@click.option("--out", "folder", default="reports/gallery", type=click.Path(path_type=Path))
@click.option("--budget", default=TOTAL_S / 60, help="Minutes of this call.", show_default=True)
@click.option("--short", is_flag=True, help="Only what shows most, within eight minutes.")
@click.option("--dry", is_flag=True, help="The same steps on the CPU, small.")
@click.option("--step", "wanted", multiple=True, help="Only this step (repeatable).")
def main(folder: Path, budget: float, short: bool, dry: bool, wanted: Sequence[str]) -> None:
    """Do the steps that are not done yet, and write what they show."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    known = steps(folder, dry)
    unknown = set(wanted) - {step.name for step in known}
    if unknown:
        names = ", ".join(step.name for step in known)
        raise click.UsageError(f"no step {', '.join(sorted(unknown))}. Valid: {names}.")
    state_file = folder / "gpu-evidence.json"
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {}
    end = time.monotonic() + min(60 * budget, SHORT_S if short else math.inf)
    for step in known:
        left_s = end - time.monotonic()
        unwanted = step.name not in wanted if wanted else short and not step.is_short
        if unwanted or state.get(step.name, {}).get("status") == "done":
            continue
        if left_s <= 0:
            break
        click.echo(f"{step.name}: at most {min(step.limit_s, left_s):.0f} s")
        state[step.name] = {**carried_out(step, folder, min(step.limit_s, left_s)), "dry": dry}
        click.echo(f"{step.name}: {state[step.name]['status']}")
        state_file.write_text(json.dumps(state, indent=1) + "\n")
        (folder / "gpu-evidence.md").write_text(told(known, state, folder))
    undone = [s.name for s in known if state.get(s.name, {}).get("status") != "done"]
    click.echo(f"Not done: {', '.join(undone)}." if undone else "All steps are done.")
    claims = judge(folder, state)
    for claim in claims:
        click.echo(f"{claim.verdict:<12} {claim.text}: {claim.value}")
    failed = any(one["status"] == "failed" for one in state.values())
    sys.exit(1 if failed or (not dry and any(claim.holds is False for claim in claims)) else 0)


def carried_out(step: Step, folder: Path, limit_s: float) -> dict[str, Any]:
    """Run a step; return its status, its seconds and the end of what it printed."""
    began = time.monotonic()
    process = subprocess.Popen(
        step.command(folder), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    cut = False
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        cut = True
        process.send_signal(signal.SIGINT)  # a run keeps its results
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        output, _ = process.communicate()
    nothing_to_test = step.name == "gpu-tests" and process.returncode == 5
    good = process.returncode == 0 or nothing_to_test
    return {
        "status": "cut off" if cut else "done" if good else "failed",
        "seconds": round(time.monotonic() - began, 1),
        "exit_code": process.returncode,
        "output": output[-TAIL:],
    }


def told(known: Sequence[Step], state: Mapping[str, Any], folder: Path) -> str:
    """Return the evidence as Markdown."""
    dry = any(one.get("dry") for one in state.values())
    lines = ["# Evidence from one GPU", ""]
    if dry:
        lines += ["**Dry form: this ran on the CPU and says nothing of a GPU.**", ""]
    lines += ["| step | status | seconds |", "| --- | --- | --- |"]
    lines += [
        f"| {step.name} | {one['status']} | {one['seconds']} |"
        for step in known
        if (one := state.get(step.name))
    ]
    lines += ["", "| claim | holds | found |", "| --- | --- | --- |"]
    lines += [f"| {c.text} | {c.verdict} | {c.value} |" for c in judge(folder, state)]
    for step in known:
        one = state.get(step.name)
        if one is None:
            continue
        lines += ["", f"## {step.name}", ""]
        summary = folder / step.name / "summary.json"
        if step.is_run and summary.exists():
            lines += measured(json.loads(summary.read_text())["rows"])
        if not step.is_run or one["status"] != "done":
            lines += ["```text", one["output"].strip(), "```"]
    return "\n".join(lines) + "\n"


def measured(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of a run's rows, and why what is missing is missing."""
    lines = [f"| case | N | status | {' | '.join(COLUMNS)} | marks |"]
    lines.append("| --- " * (len(COLUMNS) + 4) + "|")
    reasons: dict[str, None] = {}
    for row in rows:
        cells = []
        for name in COLUMNS:
            value = row.get(name)
            cells.append(f"{value['value']:.4g}" if value else "–")
            if value is None and name in row["unavailable"]:
                reasons[f"- `{name}`: {row['unavailable'][name]}"] = None
        marks = "; ".join(row["stamps"])
        lines.append(
            f"| {row['case']} | {row['world_size']} | {row['status']} |"
            f" {' | '.join(cells)} | {marks} |"
        )
        if row["reason"]:
            reasons[f"- {row['case']}, N={row['world_size']}: {row['reason']}"] = None
    return [*lines, "", *reasons]


if __name__ == "__main__":
    main()
