"""Other people's frameworks on two real ranks: the same gradients as one process, and a step time.

They live in an environment of their own, which ``make frameworks-env`` makes. Without it these
tests are skipped, unless ``SCALEBENCH_FRAMEWORK_TESTS=required`` says that they may not. Horovod's
run where its wheel is there, which ``make horovod`` builds.
"""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from benchmarks import same_deepspeed
from scalebench.records.files import read_text
from tests.builders.repository.frameworks import PYTHON, REQUIRED
from tests.conftest import PATIENCE_S
from tests.forks import forks
from tests.integration.conftest import row_of

ROOT = Path(__file__).parents[3]

PARAMETERS_BYTES = 4 * 437_760
"""Of gpt-tiny."""
ROUNDING = 1e-5
HALF = 1e-3
"""Gradients that were rounded to float16 on their way."""

DISTRIBUTION = {
    **{f"accelerate-{form}": ("accelerate",) for form in ("ddp", "ddp-accumulate-4")},
    "accelerate-zero2": ("accelerate", "deepspeed", "transformers"),
    **{f"fabric-{form}": ("lightning",) for form in ("ddp", "fsdp2", "ddp-accumulate-4")},
    **{
        f"deepspeed-zero{form}": ("deepspeed",)
        for form in ("0", "1", "2", "3", "3-offload", "2-accumulate-4")
    },
    **{form: (form[:7],) for form in ("horovod", "horovod-fp16")},
    "fairscale": ("fairscale",),
}
"""Case → what it needs."""


@cache
def installed():
    names = sorted({name for needed in DISTRIBUTION.values() for name in needed})
    ask = (
        "import importlib.metadata as m, json\n"
        f"names = {names!r}\n"
        "there = {d.metadata['Name'].lower() for d in m.distributions()}\n"
        "print(json.dumps([n for n in names if n in there]))"
    )
    if not PYTHON.exists():
        return set()
    answer = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


def cases():
    return [case for case, needed in DISTRIBUTION.items() if installed().issuperset(needed)]


@pytest.fixture(scope="module", autouse=True)
def there_is_an_environment():
    if cases():
        return
    assert not REQUIRED, f"{PYTHON} has no framework: make frameworks-env"
    pytest.skip(f"{PYTHON} has no framework; make frameworks-env installs them")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of one run of every case that can run, on two ranks."""
    folder = tmp_path_factory.mktemp("frameworks")
    rows = [flag for case in cases() for flag in ("--only", f"frameworks.{case}.n2")]
    done = scalebench_there(
        "run", "frameworks", "-k", " or ".join(cases()), "--gpus", "2", *rows, folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def script_run(tmp_path_factory):
    """The folder of a run of a user's script that does what one of the cases does."""
    if same_deepspeed.CASE not in cases():
        pytest.skip(f"{PYTHON} lacks deepspeed: make frameworks-env")
    folder = tmp_path_factory.mktemp("script")
    script = ("--", "-m", "benchmarks.same_deepspeed", "--batch", "16")
    only = ("--only", "benchmarks-same-deepspeed.script.n2")
    done = scalebench_there("run", "--gpus", "2", *only, folder, script=script)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def scalebench_there(*arguments, script=()):
    """Run a short ``scalebench run`` in the frameworks' environment; the last argument is where."""
    *command, folder = arguments
    short = ("--quick", "--steps", "4", "--no-report", "--out", "run", *script)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    environment["PYTHONPATH"] = str(ROOT)
    return forks(PYTHON).run("scalebench", [*command, *short], folder, PATIENCE_S, environment)


@pytest.mark.parametrize("case", DISTRIBUTION)
def test_gradients_are_those_of_one_process_and_a_step_is_measured(run, case):
    if case not in cases():
        command = "make horovod" if case.startswith("horovod") else "make frameworks-env"
        pytest.skip(f"{PYTHON} lacks {' or '.join(DISTRIBUTION[case])}: {command}")
    row = row_of(run, case, 2)
    assert row["status"] == "ok", row["reason"]
    assert row["correctness"]["status"] == "verified"
    deviation = row["correctness"]["gradient_deviation"]
    assert 0 < deviation < HALF if case == "horovod-fp16" else deviation < ROUNDING
    assert row["step_s"]["value"] > 0
    assert row["peak_memory_bytes"] > PARAMETERS_BYTES


def test_a_rank_sends_what_the_law_of_its_stage_says(run):
    for case in set(cases()) & {
        *("accelerate-ddp", "fabric-ddp", "fabric-fsdp2", "fairscale"),
        *(f"deepspeed-zero{stage}" for stage in range(4)),
    }:
        row = row_of(run, case, 2)
        assert row["wire_bytes"] == pytest.approx(row["predicted_wire_bytes"], rel=1e-4), case


@pytest.mark.parametrize(
    ("case", "copies"),
    [
        ("deepspeed-zero0", 1),
        ("deepspeed-zero1", 1.5),  # and a second copy of the half that the rank updates
        ("deepspeed-zero2", 1.5),
        ("accelerate-zero2", 1.5),
        ("deepspeed-zero3", 1),  # two copies of its half
    ],
)
def test_a_rank_holds_the_parameters_that_its_stage_leaves_it(run, case, copies):
    if case not in cases():
        pytest.skip(f"{PYTHON} lacks {' or '.join(DISTRIBUTION[case])}: make frameworks-env")
    row = row_of(run, case, 2)
    assert row["memory"]["parameters_bytes"] == pytest.approx(copies * PARAMETERS_BYTES, rel=0.01)
    moments = 2 if case == "deepspeed-zero0" else 1
    assert row["memory"]["optimizer_bytes"] == pytest.approx(moments * PARAMETERS_BYTES, rel=0.01)


def test_deepspeed_sends_in_every_microbatch_where_it_divides_gradients(run):
    if same_deepspeed.CASE not in cases():
        pytest.skip(f"{PYTHON} lacks deepspeed: make frameworks-env")
    row = row_of(run, same_deepspeed.CASE, 2)
    assert row["wire_bytes"] == pytest.approx(row["predicted_wire_bytes"], rel=1e-4)
    assert row["wire_bytes"] == pytest.approx(4.5 * PARAMETERS_BYTES, rel=1e-4)


def test_a_users_script_and_a_case_that_do_the_same_are_measured_alike(run, script_run):
    """Their steps are of one order; how much longer one is depends on the machine."""
    case = row_of(run, same_deepspeed.CASE, 2)
    script = row_of(script_run, "script", 2)
    assert script["wrappers"][0]["kind"] == "DeepSpeedEngine"
    assert script["wire_bytes"] == pytest.approx(case["wire_bytes"], rel=1e-4)
    assert sent(script) == sent(case)
    low, high = shortest_and_longest_step(run, f"frameworks.{same_deepspeed.CASE}")
    least, most = shortest_and_longest_step(script_run, "benchmarks-same-deepspeed.script")
    assert least < 2 * high and low < 2 * most  # a microbatch taken for a step is a fourth


def sent(row):
    """Return the operations of a step by kind, and how many of each."""
    return {one["kind"]: one["count"] for one in row["communication"] if one["ordinal"] is None}


def shortest_and_longest_step(run, row):
    (file,) = (run / "cells").glob(f"{row}.n2.r0.json.gz")
    steps = json.loads(read_text(file))["ranks"][0]["step_s"]
    return min(steps), max(steps)
