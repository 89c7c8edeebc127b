"""The steps of ``make gpu-evidence`` in their dry form, and what a GPU's readings come to."""

import gzip
import json
import sys
from pathlib import Path

from benchmarks import gpu_claims, gpu_evidence
from tests.conftest import ran
from tests.examples import cases

ROOT = Path(__file__).parents[3]


def gathered(folder, *steps, budget=(), code=None):
    words = [word for step in steps for word in ("--step", step)] + [*budget]
    dry = [sys.executable, "-m", "benchmarks.gpu_evidence", "--dry", "--out", folder, *words]
    ran(dry, cwd=ROOT, code=code)
    return json.loads((folder / "gpu-evidence.json").read_text())


def test_steps_are_done_and_told(tmp_path):
    state = gathered(tmp_path, "gpu-power", "gpu-trace", "gpu-trace-read", code=0)
    assert [one["status"] for one in state.values()] == ["done"] * 3
    assert "all_reduce" in state["gpu-trace-read"]["output"]  # the trace holds DDP's steps
    told = (tmp_path / "gpu-evidence.md").read_text()
    assert "says nothing of a GPU" in told
    assert "| idle: NVML, nvidia-smi and the energy counter agree | no | there is no GPU" in told
    assert "| ddp: mfu is between 0 and 1 | not measured |" in told


def test_a_run_that_is_cut_off_goes_on_where_it_was(tmp_path):
    cut = gathered(tmp_path, "gpu-ddp-short", budget=("--budget", "0.07"))
    assert cut["gpu-ddp-short"]["status"] == "cut off"
    gathered(tmp_path, "gpu-ddp-short", code=0)
    rows = json.loads((tmp_path / "gpu-ddp-short" / "summary.json").read_text())["rows"]
    assert [(row["case"], row["status"]) for row in rows] == [("plain", "ok"), ("ddp", "ok")]


def test_the_runs_for_the_gpu_are_valid_but_for_the_gpu_and_end_in_time(in_process):
    steps = gpu_evidence.steps(Path("x"), dry=False)
    for step in (s for s in steps if s.is_run):
        look = "--show-config" if "--max-batch" in step.arguments else "--dry-run"
        done = in_process("run", *step.arguments, "--device", "cpu", look, code=0)
        assert ("--max-batch" in step.arguments) != ("launches" in done.stdout)
    short = [step.is_short for step in steps]
    assert short == sorted(short, reverse=True) and 5 < sum(short) < len(short)
    assert sum(step.limit_s for step in steps) <= 1.25 * gpu_evidence.TOTAL_S


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
