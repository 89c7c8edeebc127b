"""The steps of ``make gpu-evidence`` in their dry form, and what a GPU's readings come to."""

import gzip
import itertools
import json
import sys
from pathlib import Path

from click.testing import CliRunner

from benchmarks import gpu_claims, gpu_evidence, gpu_probes
from tests.conftest import ran
from tests.examples import cases

ROOT = Path(__file__).parents[3]


def gathered(folder, *arguments):
    return ran(
        [sys.executable, "-m", "benchmarks.gpu_evidence", "--dry", "--out", folder, *arguments],
        cwd=ROOT,
    )


def test_steps_are_done_once_and_told(tmp_path):
    names = ("gpu-power", "gpu-trace", "gpu-shared-by-two", "gpu-trace-read")
    wanted = [argument for name in names for argument in ("--step", name)]
    done = gathered(tmp_path, *wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((tmp_path / "gpu-evidence.json").read_text())
    assert {name: one["status"] for name, one in state.items()} == dict.fromkeys(names, "done")
    assert "all_reduce" in state["gpu-trace-read"]["output"]  # the trace holds DDP's steps
    told = (tmp_path / "gpu-evidence.md").read_text()
    assert "says nothing of a GPU" in told
    assert "| ddp | 2 | ok |" in told and "the ranks ran on the CPU" in told
    assert "| two ranks share the GPU, and are marked | no | ok, backend gloo |" in told
    assert "| idle: NVML, nvidia-smi and the energy counter agree | no | there is no GPU" in told
    assert "| ddp: mfu is between 0 and 1 | not measured |" in told
    assert (tmp_path / "gpu-shared-by-two" / "report.html").exists()

    again = gathered(tmp_path, *wanted)
    assert "gpu-trace: " not in again.stdout
    assert json.loads((tmp_path / "gpu-evidence.json").read_text()) == state


def test_a_run_that_is_cut_off_goes_on_where_it_was(tmp_path):
    step = ("--step", "gpu-ddp-short")
    cut = gathered(tmp_path, *step, "--budget", "0.07")
    state = json.loads((tmp_path / "gpu-evidence.json").read_text())
    assert state["gpu-ddp-short"]["status"] == "cut off", cut.stdout
    whole = gathered(tmp_path, *step)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    rows = json.loads((tmp_path / "gpu-ddp-short" / "summary.json").read_text())["rows"]
    assert [(row["case"], row["status"]) for row in rows] == [("plain", "ok"), ("ddp", "ok")]


def test_a_step_that_does_not_exist_is_one_line(tmp_path):
    done = CliRunner().invoke(gpu_evidence.main, ["--out", str(tmp_path), "--step", "gpu-fast"])
    assert done.exit_code == 2 and "gpu-trace-read" in done.output


def test_the_runs_for_the_gpu_are_valid_but_for_the_gpu(in_process):
    for step in (s for s in gpu_evidence.steps(Path("x"), dry=False) if s.is_run):
        look = "--show-config" if "--max-batch" in step.arguments else "--dry-run"
        done = in_process("run", *step.arguments, "--device", "cpu", look, code=0)
        assert ("--max-batch" in step.arguments) != ("launches" in done.stdout)


def test_the_short_part_comes_first_and_ends_within_eight_minutes():
    steps = gpu_evidence.steps(Path("x"), dry=False)
    short = [step.is_short for step in steps]
    assert short == sorted(short, reverse=True) and 5 < sum(short) < len(short)
    assert gpu_evidence.SHORT_S + 30 <= 8 * 60
    told = CliRunner().invoke(gpu_evidence.main, ["--help"]).output
    assert "--short" in told


POWER = {"nvml_w": 690.0, "nvidia_smi_w": 689.0, "energy_counter_w": 677.0}
OPERATION = {"num_bytes": 4000, "kind": "all_reduce"}
RECORD = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 1}
ROW = {
    "case": "ddp",
    "world_size": 2,
    "reason": None,
    "correctness": {"status": "verified", "gradient_deviation": 6e-4},
    "prediction_error": -0.02,
    "mfu": {"value": 0.39},
    "probe_effect": {"value": 0.01},
    "energy_j_per_sample": {"value": 1.5},
    "unavailable": {},
}


def written(folder, power, row, operation, record):
    """A folder as the short part leaves it; return its state."""
    run = folder / "gpu-ddp-short"
    (run / "cells").mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps({"rows": [row]}))
    cell = {"ranks": [{"trace": {"operations": [operation]}}]}
    (run / "cells" / "ddp.ddp.n1.r0.json.gz").write_bytes(gzip.compress(json.dumps(cell).encode()))
    trace = {"traceEvents": [{"name": "record_param_comms", "args": record}]}
    (folder / "gpu-trace.json").write_text(json.dumps(trace))
    printed = {
        "gpu-doctor": "cuda:0    NVIDIA H200, 150 GB\nrate of cuda:0   matrix 783 TFLOP/s",
        "gpu-power": "a warning\n" + json.dumps({"idle": power, "busy": POWER}),
        "gpu-ddp-short": "",
        "gpu-trace": "",
    }
    return {name: {"status": "done", "output": output} for name, output in printed.items()}


@cases(
    "changes, refuted",
    ({}, []),
    ({"power": {**POWER, "nvml_w": 600.0}}, ["idle: NVML, nvidia-smi and the energy counter"]),
    ({"power": {**POWER, "energy_counter_w": 500.0}}, ["idle: NVML, nvidia-smi"]),
    ({"row": {**ROW, "prediction_error": None}}, ["ddp: prediction_error is not null"]),
    ({"row": {**ROW, "mfu": {"value": 1.2}}}, ["ddp: mfu is between 0 and 1"]),
    ({"row": {**ROW, "energy_j_per_sample": None}}, ["ddp: energy_j_per_sample"]),
    ({"row": {**ROW, "probe_effect": {"value": 0.2}}}, ["ddp: probe_effect is below 5%"]),
    ({"row": {**ROW, "correctness": {"status": "unverified"}}}, ["ddp: gradients"]),
    ({"operation": {"num_bytes": None}}, ["ddp: its own trace knows the size"]),
    ({"record": {"Ev Idx": 3}}, ["the profiler's file holds NCCL's records"]),
)
def test_every_claim_can_be_refuted(tmp_path, changes, refuted):
    given = {"power": POWER, "row": ROW, "operation": OPERATION, "record": RECORD, **changes}
    claims = gpu_claims.judge(tmp_path, written(tmp_path, **given))
    found = [claim.text for claim in claims if claim.verdict == "no"]
    assert len(found) == len(refuted)
    assert all(text.startswith(start) for text, start in zip(found, refuted, strict=True))
    # FSDP, sharing and the largest batch have not run.
    assert sum(claim.verdict == "not measured" for claim in claims) == 7
    assert sum(claim.verdict == "yes" for claim in claims) == 10 - len(refuted)


def test_one_rank_without_a_prediction_refutes_nothing(tmp_path):
    row = {**ROW, "world_size": 1, "prediction_error": None}
    state = written(tmp_path, power=POWER, row=row, operation=OPERATION, record=RECORD)
    verdicts = {claim.text: claim.verdict for claim in gpu_claims.judge(tmp_path, state)}
    assert verdicts["ddp: prediction_error is not null"] == "not measured"


def test_all_steps_together_fit_into_an_hour_and_the_first_matter_most():
    steps = gpu_evidence.steps(Path("x"), dry=False)
    assert len({step.name for step in steps}) == len(steps)
    assert sum(step.limit_s for step in steps) <= 1.25 * gpu_evidence.TOTAL_S


def test_power_is_compared_by_three_ways(monkeypatch):
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(gpu_probes.time, "monotonic", lambda: next(clock))
    energies = itertools.count(100.0, 50.0)
    worked = []
    found = gpu_probes.compared(
        lambda queries: {"energy_j": next(energies), "power_w": 300.0},
        lambda: 310.0,
        lambda: worked.append(1),
        3.0,
    )
    # Readings at 1 and 2 s, the end at 4 s; the counter moved by 50 J at each of three readings.
    assert found == {
        "nvml_w": 300.0,
        "nvidia_smi_w": 310.0,
        "energy_counter_w": 150.0 / 4.0,
        "seconds": 4.0,
    }
    assert len(worked) == 2
