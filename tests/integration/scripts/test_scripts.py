"""Users' own scripts, unmodified: real processes, from the command to the table."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.run import load_run
from scalebench.records.files import read_text
from scalebench.records.paths import RunPaths
from scalebench.trace.breakdown import break_down
from tests.conftest import PATIENCE_S
from tests.examples import cases
from tests.forks import FRESH, ROOT, forks
from tests.integration.conftest import row_of, summary_of
from tests.processes import free_ports

SCRIPTS = Path(__file__).parent
CASE = "script"


@pytest.fixture
def scalebench(scalebench):
    def called(*words, **named):
        done = scalebench(*words, **named)
        assert "checked.py" in words or "CHECK:" not in done.stdout
        return done

    return called


@pytest.fixture
def run(scalebench, project):
    def run_script(name, *arguments, options=()):
        shutil.copy(SCRIPTS / name, project)
        out = project / "run"
        flags = ("--quick", "--gpus", "1,2", "--out", str(out), *options)
        done = scalebench("run", *flags, "--", name, *arguments, code=0)
        (project / "table").write_text(done.stdout)
        return out

    return run_script


def printed(run, suite, n, rank, name):
    log = (run / "logs" / f"{suite}.{CASE}.n{n}.r0" / f"rank{rank}.log").read_text()
    (line,) = re.findall(rf"^{name} (.*)$", log, re.M)
    return json.loads(line)


def record(run, suite, n):
    return dict(json.loads(read_text(RunPaths(run).cell(f"{suite}.{CASE}.n{n}.r0"))))


def parts_sum_to_the_step(row):
    budget = row["budget"]
    names = [name for name in budget if name.endswith("_s") and name not in ("measured_s",)]
    seconds = [budget[name] for name in names if isinstance(budget[name], float)]
    clock = budget.get("clock_bound_s") or 0.0
    return abs(sum(seconds) - clock - budget["measured_s"]) < 1e-6


TOLERANCE = 0.05
"""Of a planted time."""


def is_planted(found_s, planted_s, what):
    """Assert that a time is what was planted in the same steps, one number for each step.

    Where the tolerance is exceeded by less than it scatters, the machine is too busy: skip.
    """
    over_s = found_s - planted_s
    limit_s = TOLERANCE * float(np.median(planted_s))
    middle_s = float(np.median(over_s))
    told = f"{what}: {middle_s * 1e3:+.2f} ms beside {limit_s * 1e3:.2f} ms allowed: {over_s * 1e3}"
    if abs(middle_s) <= limit_s:
        return
    scatter_s = float(np.subtract(*np.percentile(over_s, [75, 25]))) / 2
    if abs(middle_s) - limit_s < scatter_s:
        pytest.skip(f"inconclusive: {told}")
    pytest.fail(told)


@pytest.mark.timed
def test_plain_ddp_is_measured_as_it_measures_itself(project, scalebench, monkeypatch):
    """Its own clock, next to the optimizer's call, must say what the hook's marks say."""
    monkeypatch.setenv(FRESH, "1")
    for name in ("plain_ddp.py", "delayed_loading.py"):
        shutil.copy(SCRIPTS / name, project)
    out = project / "run"
    flags = ("--gpus", "1,2", "--repeats", "1", "--out", str(out))
    done = scalebench("run", "./delayed_loading.py", *flags, code=0)
    for n in (1, 2):
        stored = record(out, "plain-ddp", n)
        for rank in stored["ranks"]:
            own = printed(out, "plain-ddp", n, rank["rank"], "OWN")
            assert len(rank["step_s"]) == len(own)
            clean = [b for b in rank["blocks"] if b["phase"] == "clean"]
            steps = [i for b in clean for i in range(b["first"] + 1, b["first"] + b["count"])]
            by_script = median(own[i] - own[i - 1] for i in steps)
            apart = median(rank["step_s"][i] - (own[i] - own[i - 1]) for i in steps)
            assert abs(apart) < 0.02 * by_script
            # As torchrun leaves it; ranks of suites are pinned and in another class.
            here = [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))]
            assert printed(out, "plain-ddp", n, rank["rank"], "SCHEDULED") == here
            facts = rank["facts"]
            assert [facts["scheduling_class"], facts["affinity"]] == ["default", here[1]]
    sessions = {printed(out, "plain-ddp", 2, rank, "SESSION") for rank in range(2)}
    assert len(sessions) == 2 and os.getsid(0) not in sessions  # as torchrun starts its ranks
    row = row_of(out, CASE, 2)
    assert (row["global_batch"], row["rank_batch"], row["scaling"]) == (32, 16, "weak")
    assert row["throughput"]["value"] == pytest.approx(32 / row["step_s"]["value"])
    assert (row["backend"], row["correctness"]["status"]) == ("gloo", "unverified")
    assert parts_sum_to_the_step(row)
    # DDP asks for its buckets on one rank, too: the step on two is predicted from there.
    assert row["predicted_step_s"] > 0 and row["prediction_error"] is not None
    assert {op["op"] for op in row["prediction"]["operations"]} == {"all_reduce"}
    assert json.loads((out / "link-profile.json").read_text())["fits"]
    scalebench("project", str(out), "--gpus", "8", "--json", code=0)
    said = " ".join(done.stdout.split())
    assert "the same arguments at every N; what its ranks are seen to do" in said
    assert "unverified" in said
    assert (out / "report.html").stat().st_size > 10_000
    # The sleep in rank 1's loading is rank 1's data stall, and rank 0 waits for it.
    launch = attribute(load_run(out).results[f"plain-ddp.{CASE}.n2.r0"])
    loaded = [printed(out, "plain-ddp", 2, rank, "LOADED") for rank in (0, 1)]
    blocks = [b for b in launch.result.ranks[0].blocks if b.phase == "traced"]
    traced = [i for b in blocks for i in range(b.first + 1, b.first + b.count)]
    loaded_s = [np.array(one)[traced] for one in loaded]
    planted_s, later_s = loaded_s[1], loaded_s[1] - loaded_s[0]
    assert len(traced) >= 8 and min(planted_s) >= 0.05

    def each_step(rank):
        own = launch.traces[rank], launch.waiting.get(rank)
        return [break_down(rank, *own, [index]) for index in range(len(traced))]

    first, second = each_step(0), each_step(1)
    assert max(one.data_stall_s for one in first) < 0.5 * median(planted_s)
    assert max(one.wait_s for one in second) < 0.5 * median(planted_s)
    is_planted(np.array([one.data_stall_s for one in second]), planted_s, "data stall")
    is_planted(np.array([one.wait_s for one in first]), later_s, "wait")
    # What the row says is the mean over the typical of these steps.
    ranks = row["budget"]["ranks"]
    typical = launch.typical_steps
    stalls_s = np.mean([second[i].data_stall_s for i in typical])
    assert stalls_s == pytest.approx(planted_s[typical].mean(), rel=2 * TOLERANCE)
    assert ranks[1]["data_stall_s"] == pytest.approx(stalls_s, rel=0.01)
    waits_s = np.mean([first[i].wait_s for i in typical])
    assert ranks[0]["wait_s"] == pytest.approx(waits_s, rel=0.01)


OLDEST_PYTHON = "OLDEST_PYTHON"
"""Variable that names an interpreter of the oldest supported kind: Python 3.9 and torch 2.4."""


@cases("oldest", False, True)
def test_microbatches_are_one_step_and_add_up(run, oldest):
    python = os.environ.get(OLDEST_PYTHON) if oldest else sys.executable
    if not python:
        pytest.skip(f"{OLDEST_PYTHON} is not set")
    out = run("accumulate.py", options=("--no-report", "--python", python))
    for n in (1, 2):
        for rank in record(out, "accumulate", n)["ranks"]:
            facts = rank["facts"]
            assert len(rank["step_s"]) == printed(out, "accumulate", n, rank["rank"], "STEPS")
            assert (rank["samples_per_step"], rank["tokens_per_sample"]) == (32, 32)
            assert facts["microbatches"] == 4
            assert not oldest or (facts["python"][:4], facts["torch"][:4]) == ("3.9.", "2.4.")
    row = row_of(out, CASE, 2)
    seen = row["script"]
    assert row["budget"] is not None
    lines = (SCRIPTS / "accumulate.py").read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if ".item()" in text)
    (place,) = seen["host_waits"]["places"]
    assert (place["file"], place["line"], place["call"]) == ("accumulate.py", line, ".item()")
    assert seen["host_waits"]["per_step"] == pytest.approx(1.0)
    assert row["wrappers"][0]["unused_bytes"] == 0
    assert 0 < seen["unused_search_s"] < row["step_s"]["value"]
    assert seen["loader"]["num_workers"] == 0
    assert [(one["name"], one["ranks"]) for one in seen["groups"]] == [("world", 2)]
    assert row["global_batch"] == 64
    assert row["tokens_per_s"]["value"] == pytest.approx(32 * row["throughput"]["value"])


@pytest.mark.timed
def test_steps_that_differ_by_design_have_the_mean_of_the_script_s_own_clock(run, project):
    """Play before every eighth update and averaging after every sixteenth."""
    out = run("unequal.py", options=("--no-report",))
    for n in (1, 2):
        row = row_of(out, CASE, n)
        own_s = printed(out, "unequal", n, 0, "MEAN")
        assert row["step_s"]["value"] == pytest.approx(own_s, rel=0.1)
        assert row["typical_step_s"]["value"] < 0.7 * own_s
        assert "steps differ" in row["stamps"]
    assert row["efficiency"]["value"] == pytest.approx(1, abs=0.1)
    said = " ".join((project / "table").read_text().split())
    # Sent in one traced step of 16.
    assert row["comm_s"]["value"] > 0 and "in the mean, which all numbers rest on" in said


@pytest.mark.timed
def test_evaluation_lies_outside_of_the_steps(run, project):
    out = run("evaluates.py", "--into", "{run_dir}", options=("--steps", "50", "--no-report"))
    own = record(out, "evaluates", 2)["ranks"][0]
    evaluated = printed(out, "evaluates", 2, 0, "EVALUATED")
    assert len(own["step_s"]) == printed(out, "evaluates", 2, 0, "STEPS")
    gaps = {gap["step"]: gap["seconds"] for gap in own["gaps"]}
    last = max(b["first"] + b["count"] for b in own["blocks"] if b["phase"] == "clean")
    for gap in own["gaps"]:
        if gap["step"] in evaluated and gap["step"] < last:
            assert gap["evaluation_s"] > 0.15 and gap["checkpoint_s"] > 0
    # Made between its 20th step and the next, which is number 20.
    assert all(0.2 < gaps[step] < 2 for step in evaluated if step < last)
    row = row_of(out, CASE, 2)
    largest = row["outside_step"]["largest"][0]
    assert row["step_s"]["value"] < 0.1
    assert largest["step"] in evaluated and largest["kind"] == "evaluation"
    assert "outside of the steps" in (project / "table").read_text()


def test_fsdp_is_measured_like_any_other_and_projected_from_two_ranks(run, scalebench):
    out = run("evaluates.py", "--fsdp", options=("--no-report",))
    row = row_of(out, CASE, 2)
    assert parts_sum_to_the_step(row)
    kinds = {figures["kind"] for figures in row["communication"]}
    assert {"all_gather", "reduce_scatter"} <= kinds
    # On one rank it sends nothing: larger sizes are predicted from this row, and it is no test.
    assert row["predicted_step_s"] is None
    assert "would be no test" in row["unavailable"]["prediction"]
    assert "start from N=2" in row_of(out, CASE, 1)["unavailable"]["prediction"]
    fits = json.loads((out / "link-profile.json").read_text())["fits"]
    assert {fit["op"] for fit in fits} == {"all_gather", "reduce_scatter"}
    projected = scalebench("project", str(out), "--gpus", "8", "--json", code=0)
    (eight,) = json.loads(projected.stdout)["rows"]
    assert eight["exposed_transfer_s"] > 0 and eight["global_batch"] == 128
    assert record(out, "evaluates", 2)["ranks"][0]["facts"]["wrappers"][0]["kind"] == "FSDPModule"


@pytest.fixture
def troubled(scalebench, project):
    shutil.copy(SCRIPTS / "troubled_script.py", project)

    def run_troubled(*words, gpus="1", code=0):
        flags = ("--quick", "--gpus", gpus, "--no-report", "--out", "run")
        return scalebench("run", *flags, "--", *words, code=code)

    return run_troubled


def test_a_rank_that_fails_is_named_with_its_own_traceback(troubled, project, monkeypatch):
    first = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", first)
    troubled("python", "-u", "troubled_script.py", "fails", gpus="2", code=4)
    row = row_of(project / "run", CASE, 2)
    assert row["reason"] == "rank 1: RuntimeError: a trouble of its own"
    told = record(project / "run", "troubled-script", 2)["failure"]["traceback"]
    assert "in train" in told and "runpy" not in told and "attach" not in told


@cases("way", "short", "short-at-once")
def test_a_script_that_ends_early_is_measured_and_marked(troubled, project, way):
    done = troubled("-m", "troubled_script", way, gpus="1,2")
    for row in summary_of(project / "run")["rows"]:
        assert {"ended early: after 16 steps", "samples not counted"} <= {*row["stamps"]}
        assert row["throughput"]["value"] == pytest.approx(1 / row["step_s"]["value"])
    assert "steps" in done.stdout and "ended early" in done.stdout
    assert "every launch writes rank0.txt: what one" in " ".join(done.stdout.split())


APART = "the processes train separately"


@cases(
    "trouble, gpus, told",
    ("never-steps", "1", "step. It ended by itself and printed last: nothing to train"),
    ("by-hand", "1", "made 4096 backward passes and no training step that scalebench sees"),
    ("too-short", "1", "ended after 2 training steps, and at least 4 are needed"),
    ("nests", "1", "the script starts torchrun, which starts ranks as well"),
    ("spawns", "1", "starts its own ranks with multiprocessing"),
    ("starts-ranks", "1", "starts its own ranks with multiprocessing"),
    ("alone", "2", "Call torch.distributed.init_process_group()"),
    ("apart", "2", "process group has 1 of the 2 ranks. Have it take RANK and WORLD_SIZE"),
    ("unwrapped", "2", "cannot hold the gradients of 34,816 parameters"),
    ("one-steps", "2", "a rank made no training step, and another made all"),
)
def test_a_trouble_is_told_in_one_line(troubled, trouble, gpus, told):
    """Processes that train separately are no scaling."""
    done = troubled("troubled_script.py", trouble, gpus=gpus, code=2)
    said = " ".join((done.stdout + done.stderr).split())
    assert told in said and len(done.stderr.strip().splitlines()) == 1
    assert (APART in said) is (trouble in ("alone", "apart", "unwrapped"))
    assert trouble != "unwrapped" or "Sequential is not wrapped" in said


def test_a_script_that_catches_its_end_is_measured(troubled):
    done = troubled("troubled_script.py", "catches-exit")
    assert "measured on one rank only" in " ".join((done.stdout + done.stderr).split())


def test_a_launch_that_goes_on_from_the_one_before_is_no_measurement(troubled, project):
    done = troubled("troubled_script.py", "resumes", gpus="1,2", code=4)
    assert row_of(project / "run", CASE, 1)["step_s"]["value"] > 0
    reason = row_of(project / "run", CASE, 2)["reason"]
    assert "printed last: Resuming at epoch 40 (logs/troubled-script.script.n2.r0/rank" in reason
    assert "went on from snapshot.pt" in reason and "{run_dir}" in reason
    table = [line for line in done.stdout.splitlines() if "failed" in line]
    assert table and not any("/" in line for line in table if "│" not in line and "," not in line)


def test_two_versions_of_a_script_are_compared_in_turns(scalebench, project):
    before = project / "before"
    before.mkdir()
    for folder in (project, before):
        shutil.copy(SCRIPTS / "troubled_script.py", folder)
    slower = (project / "troubled_script.py").read_text()
    line = "        optimizer.zero_grad()\n"
    assert slower.count(line) == 1
    slower = slower.replace(line, line + "        time.sleep(0.05)\n")
    (project / "troubled_script.py").write_text(slower)
    flags = ("gate", "--interleave", "--base-dir", "before", "--rounds", "2", "--json", "--")
    words = ("--gpus", "1", "--quick", "--no-trace", "--", "troubled_script.py", "short")
    done = scalebench(*flags, *words)
    assert done.returncode in (0, 1), done.stderr  # two rounds need not decide
    rows = json.loads(done.stdout)["rows"]
    (step,) = [row for row in rows if row["metric"] == "step_s"]
    assert step["verdict"] != "unchanged" and step["change"] > 1
    assert step["base_launches"] == step["new_launches"] == 2
    (place,) = (project / "reports").glob("*_interleaved")
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["base-0", "new-0"]
    for run in ("base-0", "new-0"):  # one run each, which made a further round when asked
        info = json.loads((place / run / "run.json").read_text())
        assert info["status"] == "complete"
        assert [cell["repeat"] for cell in info["plan"] if cell["purpose"] == "measure"] == [0, 1]


def test_a_program_watches_its_own_training(scalebench, project):
    shutil.copy(SCRIPTS / "own_loop.py", project)
    there = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    there["MASTER_PORT"] = str(*free_ports(1))
    ranks = [
        forks().start("own_loop", ["ra", "rb"], project, {**there, "RANK": r, "LOCAL_RANK": r})
        for r in "01"
    ]
    outputs, errors = zip(*(rank.communicate(PATIENCE_S) for rank in ranks), strict=True)
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    printed = "".join(outputs)
    told = {
        word: [json.loads(text) for text in re.findall(rf"^{word} (.*)$", printed, re.M)]
        for word in ("AS BEFORE", "STEPS", "RUN", "NOTHING")
    }
    assert told["AS BEFORE"] == [True, True]
    assert sorted(told["RUN"]) == [False, True]
    assert all(trained == 1920 > recorded > 40 for trained, recorded in told["STEPS"])
    for kind, message in told["NOTHING"]:
        assert kind == "UsageError" and "ended without a training step" in message
    assert "my-loop" in printed
    row = row_of(project / "ra", CASE, 2)
    assert (row["global_batch"], row["rank_batch"], row["pinned"]) == (32, 16, False)
    assert row["wrappers"][0]["kind"] == "DistributedDataParallel"
    assert row["comm_s"]["value"] > 0
    assert row["unavailable"]["efficiency"] == "the script was not run at N=1"
    shown = scalebench("show", "ra", "--verbose")
    assert shown.returncode == 0 and "my-loop" in shown.stdout


IN_SYNC = "checks: in sync · different data"
START = "CHECK: the ranks' models differ from the start, in"
SINCE = "CHECK: the ranks' models differ since step 1, in"
ALIKE = "CHECK: all ranks train on the same batches: 2 ranks do the work of one; give"
BOTH = ("--gpus", "1,2", "--batch-size", "16")
OF_TWO, FAST, TWICE = ("--only", "checked.script.n2"), ("--no-trace",), ("--repeats", "2")
OPTIONS = {
    "averaged {rank_batch}": (*BOTH, *TWICE),
    "twice+kept+lost": ("--gpus", "1,2", *FAST),
    "never {rank_batch}": (*BOTH, *FAST),
    "fsdp1+noise": ("--gpus", "4", "--only", "checked.script.n4", *FAST),
    "buffer+kept+unseeded+drops": (*OF_TWO, *FAST, *TWICE),
    **dict.fromkeys(("sharp+dry", "buffer+summed+each+dropout"), OF_TWO),
}
TOLD = {
    "averaged {rank_batch}": [f"{IN_SYNC} · accumulates right · gradient as at N=1 · reproducible"],
    "twice+kept+lost": [
        "CHECK: the gradient is divided by 2 twice, as DDP",
        "CHECK: the ranks' buffers differ, in 0.seen",
        "CHECK: the loss is NaN or infinite from step 6 on",
    ],
    "never {rank_batch}": ["CHECK: the gradient is 2 times that of N=1 on the same samples"],
    "data+outside": [
        f"{START} weight of Linear, outside of DDP and bias of Linear, outside of DDP; DDP must",
        f"{ALIKE} the DataLoader a DistributedSampler",
    ],
    "order+norm+noise": [
        f"{SINCE} 1.weight; a rank changes them alone",
        "CHECK: every epoch has the same order; call sampler.set_epoch(epoch) in each",
        "CHECK: BatchNorm sees 8 samples, those of one rank; SyncBatchNorm takes those of all",
        "checks: different data",
    ],
    "hybrid+start+shuffled": [
        f"{START} 0.0.weight, 0.0.bias, 0.3.weight",
        "CHECK: ranks train partly on the same samples:",
    ],
    "fsdp1+noise": [f"{SINCE} 0.0.weight, 0.0.bias; a rank"],
    "buffer+kept+unseeded+drops": [
        "CHECK: the ranks' buffers differ, in 0.4.mean",
        f"{IN_SYNC} · note: not reproducible",
    ],
    "drawn": [f"{ALIKE} each rank another seed", "checks: in sync"],
    "own": [
        f"{START} 0.0.weight, 0.0.bias, 0.3.weight and 3 more; give all ranks the same start",
        "checks: different data",
    ],
    **dict.fromkeys(("own+dropout", "sharp+dry", "outside+start+experts"), (IN_SYNC,)),
    "slices": ("checks: in sync",),
    "uneven": ["checks: different data"],  # one rank comes later to its last step
    "buffer+summed+each+dropout": [
        f"{IN_SYNC} · note: buffers are those of rank 0 · note: micro-batches are summed · note:"
        " gradients are sent for each micro-batch · note: dropout is the same on all ranks"
    ],
}


@cases("ways", *TOLD)
def test_how_a_script_trains_is_told(run, project, ways):
    options = OPTIONS.get(ways, (*OF_TWO, *FAST))
    run("checked.py", *ways.split(), options=(*options, "--no-report"))
    said = " ".join((project / "table").read_text().split())
    assert [one for one in TOLD[ways] if one not in said] == []
    assert said.count("CHECK") == sum("CHECK" in one for one in TOLD[ways])
    assert "sharp" not in ways or "no_sync" not in said  # each of its passes has to be sent
    assert ("samples not counted" in said) is (ways == "drawn")
    assert (" 2 8/4 " in said) is ("slices" in ways)  # of the batch of 8 that both read


FRAMEWORKS_PYTHON = "FRAMEWORKS_PYTHON"
"""Variable that names an interpreter of another environment: with transformers, accelerate,
lightning, deepspeed, trl and torch_geometric, or some of them."""


def images_of(python):
    return str(Path(python).parents[1] / "images")


def interpreter_with(needs):
    if needs is None:
        return sys.executable
    python = os.environ.get(FRAMEWORKS_PYTHON, "")
    if not python:
        pytest.skip(f"{FRAMEWORKS_PYTHON} is not set")
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({needs!r}) is None)"
    there = {**os.environ, "PYTHONPATH": images_of(python)}
    if subprocess.run([python, "-c", find], env=there).returncode:
        pytest.skip(f"{python} has no {needs}")
    return python


def beside_own_clock(step_s, ends_ns):
    """Return a script's steps as scalebench and as its own clock time them: their ratio.

    The two read the clock at different places of a step, so what interrupts the process between
    them counts for one alone: from the median of the first third to that of the last.
    """
    own_s = np.array(ends_ns)[5:] / 1e9
    ahead_s = np.cumsum(step_s)[5:] - own_s
    third = max(1, len(own_s) // 3)
    drift_s, took_s = (
        float(np.median(x[-third:]) - np.median(x[:third])) for x in (ahead_s, own_s)
    )
    return 1 + drift_s / took_s


@cases(
    "name, needs, samples, microbatches, kind, scaling",
    ("nanogpt_like", None, None, 8, "DistributedDataParallel", "strong"),
    ("mingpt_like", None, 16, 1, "DistributedDataParallel", "weak"),
    ("imagenet_like", None, 16, 1, "DistributedDataParallel", "weak"),
    ("fsdp2_like", None, None, 1, "FSDPModule", "weak"),
    ("tensor_parallel_like", None, None, 1, "DTensor", "strong"),
    ("hf_trainer", "transformers", 8, 2, "DistributedDataParallel", None),
    ("hf_accelerate", "accelerate", 32, 4, "DistributedDataParallel", None),
    ("lightning_like ddp", "lightning", 8, 1, "DistributedDataParallel", None),
    ("lightning_like fsdp", "lightning", 8, 1, "FSDPModule", None),
    ("deepspeed_zero2", "deepspeed", 16, 2, "DeepSpeedEngine", "weak"),
    ("pyg_graphs", "torch_geometric", 8, 1, "DistributedDataParallel", None),
    ("trl_sft", "trl", 8, 2, "DistributedDataParallel", None),
    ("timm_train", "timm", 8, 1, "DistributedDataParallel", None),
)
def test_scripts_as_people_write_them_are_counted_as_they_count(
    scalebench, project, monkeypatch, name, needs, samples, microbatches, kind, scaling
):
    """Their steps, samples a rank, and how they are divided; `needs` a package, or torch alone.

    Without `scaling` on two ranks only: another script has the same kind of wrapper.
    """
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    python = interpreter_with(needs)
    name, *words = name.split()
    for file in (name, "own_clock"):
        shutil.copy(SCRIPTS / "as_written" / f"{file}.py", project)
    suite = name.replace("_", "-")
    only = () if scaling else ("--only", f"{suite}.{CASE}.n2")
    flags = ("run", "--quick", "--gpus", "1,2", "--no-report", "--out", "run", *only)
    program = ("--", f"{name}.py", *(words or ["{run_dir}"]))
    if needs is None:
        done = scalebench(*flags, *program)
    else:  # in a fork with the frameworks imported
        places = [str(ROOT), *([images_of(python)] if needs == "timm" else [])]
        there = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        frameworks = forks(Path(python))
        done = frameworks.run("scalebench", [*flags, *program], project, PATIENCE_S, there)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("CHECK") == (name == "timm_train")  # BatchNorm of 8 samples
    for n in (1, 2) if scaling else (2,):
        for rank in record(project / "run", suite, n)["ranks"]:
            ends = printed(project / "run", suite, n, rank["rank"], "ENDS")
            assert len(rank["step_s"]) == len(ends) > 10
            assert beside_own_clock(rank["step_s"], ends) == pytest.approx(1, abs=0.01)
            assert rank["samples_per_step"] == (samples and pytest.approx(samples))
            divided = n if scaling == "strong" and microbatches > 1 else 1
            facts = rank["facts"]
            found = facts.get("microbatches") or facts["backwards_per_step"]
            assert found == microbatches // divided
            if name == "nanogpt_like":  # of all its optimizers
                counted = printed(project / "run", suite, n, rank["rank"], "PARAMETERS")
                assert rank["num_parameters"] == counted
            if n > 1 or name != "imagenet_like":
                assert facts["wrappers"][0]["kind"] == kind
    row = row_of(project / "run", CASE, 2)
    assert row["script"]["checks"] is not None
    if scaling is None:
        return
    assert row["budget"] and row["scaling"] == scaling and row["throughput"]["value"] > 0
    at_one = row_of(project / "run", CASE, 1)["throughput"]["value"]
    grown = row["throughput"]["value"] / at_one
    if samples is None and scaling == "weak":  # steps per second: each is of twice the work
        grown *= 2
    assert row["speedup"]["value"] == pytest.approx(grown, rel=1e-3)
    if name == "deepspeed_zero2":
        assert row["wrappers"][0]["stage"] == 2


def test_a_script_whose_name_and_argument_are_no_utf_8(scalebench, project):
    name, argument = os.fsdecode(b"tr\xe9.py"), os.fsdecode(b"--note=\xff")
    (project / name).write_text(
        "import os, sys, torch\nassert os.fsencode(sys.argv[1]) == b'--note=\\xff'\n"
        "model = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(400): model(torch.randn(8, 4)).sum().backward(), optimizer.step()\n"
    )
    out = os.fsdecode(b"r\xff")
    flags = ("--quick", "--gpus", "1", "--no-trace", "--out", out)
    done = scalebench("run", *flags, "--", name, argument, code=0)
    assert json.loads((project / out / "run.json").read_text())["status"] == "complete"
    assert "Report  r\\udcff/report.html" in done.stdout
