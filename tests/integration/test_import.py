"""Logs of the field: each gives the right step, or is refused for the reason that is known."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.builders.documents import blocks, commands
from tests.builders.field_files import field_file
from tests.conftest import PATIENCE_S, Scalebench

SAYS_NO_N = {
    "09": 8, "14": 0, "16": 0, "18": 0, "24": 32, "26": 8, "33": 16, "37": 4, "39": 8, "43": 1,
    "44": 8, "51": 8, "53": 8,
}  # fmt: skip
"""Folder → N that its logs do not say; 0: it is in the file's name."""
REFUSED = {
    "21": "only a final line of each rank",
    "24": "single step without its time",
}
"""Folder → why its logs have no step."""
EXCERPT = ("09", "19")
"""Whose excerpts are of other steps than the whole log: what was seen of the excerpt is right."""
RIGHT = (
    *("clock_step_s", "step_s_minus_eval", "median_step_s_if_batch_is_per_gpu"),
    *("median_step_s", "step_s_from_clock"),
)


def logs_folder() -> Path | None:
    """Return where the logs are, as long as the environment says it; None: nowhere."""
    try:
        return field_file("logs")
    except pytest.skip.Exception:
        return None


LOGS = logs_folder()
FOLDERS = sorted(path.name for path in LOGS.iterdir()) if LOGS else []


def field_log(pattern: str) -> str:
    if LOGS is None:
        pytest.skip("the logs of the field are not here; SCALEBENCH_FIELD says where")
    (only,) = LOGS.glob(pattern)
    return str(only)


def right_step(meta: dict[str, Any], name: str, number: str) -> float:
    """Return what a step of a log takes, seconds."""
    run = next((r for r in meta.get("runs", []) if r["file"] == name), meta.get("right", {}))
    if "pause_free_segments_step_s" in run:
        return median(run["pause_free_segments_step_s"])
    if number in EXCERPT:
        run = meta["prototype_on_excerpt"][name]
    if number == "19":
        return run["median_step_s"]
    return next(run[key] for key in RIGHT if run.get(key))


def summary_of(in_process: Scalebench, *words: str) -> tuple[dict[str, Any], str]:
    done = in_process("import", *words, "--json", "--no-report")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", FOLDERS or ["none"])
def test_every_log_of_the_field_gives_its_step_or_its_reason(
    in_process: Scalebench, name: str
) -> None:
    folder = Path(field_log(name))
    number = name[:2]
    meta = json.loads((folder / "meta.json").read_text())
    for path in sorted(folder.iterdir()):
        if path.name == "meta.json":
            continue
        log = str(path)
        if number in SAYS_NO_N:
            refused = in_process("import", log)
            assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
            assert "on how many GPUs" in refused.stderr and "gpus=" in refused.stderr
            in_name = re.search(r"\d+", path.name)
            log += f":gpus={SAYS_NO_N[number] or (in_name and in_name[0])}"
        (row,) = summary_of(in_process, log)[0]["rows"]
        if number in REFUSED:
            assert row["step_s"] is None
            assert REFUSED[number] in row["unavailable"]["step_s"]
            continue
        kind = "typical_step_s" if number == "19" else "step_s"
        assert row[kind]["value"] == pytest.approx(right_step(meta, path.name, number), rel=0.02)


def of(pattern: str, *sizes: int, told: bool = True) -> list[str]:
    return [field_log(pattern.format(n)) + (f":gpus={n}" if told else "") for n in sizes]


def test_what_else_the_field_says_is_right_as_well(in_process: Scalebench) -> None:
    dllogger, _ = summary_of(in_process, *of("18*/gpus{}.txt", 1, 2, 4, 8))
    assert [row["rank_batch"] for row in dllogger["rows"]] == [1280] * 4
    assert dllogger["rows"][3]["throughput"]["value"] == pytest.approx(20914.85, rel=0.01)
    assert {row["scaling"] for row in dllogger["rows"]} == {"weak"}
    ranks, _ = summary_of(in_process, *of("21*/gpus{}.txt", 1, 8, told=False), "--per", "sample")
    assert ranks["rows"][1]["throughput"]["value"] == pytest.approx(1558.09, rel=1e-4)
    assert ranks["rows"][1]["efficiency"]["value"] == pytest.approx(1558.09 / 224.66 / 8, rel=1e-4)
    titan, _ = summary_of(in_process, field_log("24*/before*") + ":gpus=32")
    assert titan["rows"][0]["tokens_per_s"]["value"] == 217120
    assert titan["rows"][0]["mfu"]["value"] == pytest.approx(0.3973)
    given = ("--seq", "8192", "--batch-per-gpu", "1")
    titan, _ = summary_of(in_process, field_log("24*/before*") + ":gpus=32", *given)
    assert titan["rows"][0]["step_s"]["value"] == pytest.approx(8192 / 6785)
    deepspeed, _ = summary_of(in_process, field_log("05*/train.log"))
    assert "DeepSpeed's timer says 303.1 samples/s and the job does 27.2" in str(deepspeed)
    repeats, _ = summary_of(
        in_process, *(log + ":gpus=8" for log in of("09*/run{}.txt", *range(8), told=False))
    )
    step = repeats["rows"][0]["step_s"]
    assert step["n"] == 8 and step["low"] < step["value"] < step["high"]


def test_jobs_that_do_different_work_have_no_efficiency(in_process: Scalebench) -> None:
    models, _ = summary_of(in_process, *of("03*/gpus{}.log", 16, 32, 64, 128, 256, told=False))
    assert {row["efficiency"] for row in models["rows"]} == {None}
    assert "differ in their model (layers): 40, 48, 64" in str(models["notices"])
    llama = of("14*/h100-{}.txt", 512, 2048, 8192)
    batches, _ = summary_of(in_process, *llama)
    assert "neither batch nor batch per GPU" in batches["rows"][1]["unavailable"]["efficiency"]
    tokens, _ = summary_of(in_process, *llama, "--per", "token")
    assert [row["baseline"][2] for row in tokens["rows"]] == [512] * 3
    assert tokens["rows"][2]["efficiency"]["value"] == pytest.approx(
        2428215 / 171265 / 16, rel=0.02
    )
    mixed = in_process("import", llama[0], *of("14*/gb200-{}.txt", 1024), "--per", "token")
    assert "differ in their GPU: H100, NVIDIA GB200" in mixed.stdout


def test_the_study_of_the_document_is_the_field_s(in_process: Scalebench, project: Path) -> None:
    logs = of("22*/gpus{}.txt", 1, 2, 4, 8, told=False)
    done = in_process("import", *logs, "--name", "mask-rcnn", "--out", "study")
    assert done.returncode == 0, done.stderr
    (shown,) = blocks("docs/import.md", "text")
    llama, *_ = blocks("benchmarks/evidence.md", "text")
    assert shown.strip() in done.stdout
    logs = of("14*/h100-{}.txt", 512, 2048, 2432, 2560, 8192)
    done = in_process("import", *logs, "--per", "token", "--name", "llama31-405b", "--no-report")
    assert llama.strip() in done.stdout
    page = (project / "study" / "report.html").read_text()
    assert "the clock counts" in page and "maskrcnn-benchmark" in page


def test_the_examples_of_the_document(scalebench: Scalebench, project: Path) -> None:
    (program,) = blocks("docs/import.md", "python")
    (project / "make_logs.py").write_text(program)
    made = subprocess.run([sys.executable, "make_logs.py"], timeout=PATIENCE_S)
    assert made.returncode == 0
    (own,) = blocks("docs/import.md", "toml")
    (project / "scalebench.toml").write_text(own)
    for arguments in commands("docs/import.md"):
        if "--follow" in arguments:
            continue
        done = scalebench(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    table = scalebench("show", "before").stdout
    assert re.search(r"^job +1 .* 100 %", table, re.M) and "weak scaling" in table
    for export in ("junit", "csv", "openmetrics", "github-action-benchmark-bigger"):
        done = scalebench("export", "before", "--format", export)
        assert done.returncode == 0, (export, done.stderr)


def test_an_imported_run_is_judged_by_the_gate(in_process: Scalebench, project: Path) -> None:
    for side, ms in (("base", 500), ("slow", 560)):
        for repeat in range(4):
            for n in (1, 8):
                times = (ms + 10 * (n > 1) + (i * 7 + repeat * 3) % 5 for i in range(40))
                lines = [f"iter {i}: loss 4.0, time {t:.2f}ms" for i, t in enumerate(times)]
                (project / f"{side}{repeat}-{n}.log").write_text("\n".join(lines) + "\n")
        logs = [f"{side}{r}-{n}.log:gpus={n}" for r in range(4) for n in (1, 8)]
        done = in_process("import", *logs, "--batch-per-gpu", "4", "--out", side, "--no-report")
        assert done.returncode == 0, done.stderr
    slower = in_process("gate", "--baseline", "base", "slow")
    assert slower.returncode == 1, slower.stdout
    same = in_process("gate", "--baseline", "base", "base")
    assert same.returncode in (0, 3)
    assert in_process("compare", "base", "slow").returncode == 0
    assert in_process("history", "base", "slow").returncode == 0
    unknown = in_process("project", "base", "--gpus", "64")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (3, 1)
    assert "read from logs" in unknown.stderr
    divided = in_process("search", "--measured", "base", "--gpus", "8", "--gpu-type", "h100")
    assert divided.returncode == 2 and "CSV file" in divided.stderr


def test_bad_logs_are_one_line_each_and_the_rest_is_read(
    in_process: Scalebench, project: Path
) -> None:
    good = "".join(f"iter {i}: loss 4.0, time 500.00ms\n" for i in range(20))
    for name, text in {
        "good.log": good,
        "empty.log": "",
        "words.log": "nothing of note 1\n",
        "size.log": "world_size: 16\n" + good,
        "nan.log": good + "".join(f"iter {i}: loss nan, time 500.00ms\n" for i in range(20, 30)),
    }.items():
        (project / name).write_text(text)
    done = in_process(
        *("import", "good.log:gpus=8", "empty.log:gpus=8", "words.log:gpus=8", "size.log:gpus=8"),
        *("gone.log:gpus=8", "--no-report", "--out", "some"),
    )
    assert done.returncode == 4
    told = done.stderr.splitlines()
    assert len(told) == 4 and all("left out" in line for line in told)
    assert "says that the job had 16 ranks, and gpus=8" in done.stderr
    failed = in_process("import", "nan.log:gpus=8", "--no-report", "--out", "bad")
    assert failed.returncode == 4
    assert "the loss is not finite from step 20 on" in failed.stdout
    for words, word in (
        (["good.log:gpu=H100:gpus=x"], "gpus=x"),
        (["good.log:gpsu=8"], "gpsu"),
        (["good.log:gpus=8", "--format", "megatorn"], "megatron"),
        (["good.log:gpus=8", "--column", "time"], "VALUE=NAME"),
    ):
        refused = in_process("import", *words)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
        assert word in refused.stderr
