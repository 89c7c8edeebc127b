"""Logs of the field: each gives the right step, or is refused for the reason that is known."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.builders.repository.documents import blocks, commands
from tests.builders.repository.field_files import field_file
from tests.conftest import PATIENCE_S
from tests.integration.conftest import complaint

SAYS_NO_N = {
    "09": 8, "14": 0, "16": 0, "18": 0, "24": 32, "26": 8, "33": 16, "37": 4, "39": 8, "43": 1,
    "44": 8, "51": 8, "53": 8,
}  # fmt: skip
"""Folder → N that its logs do not say; 0: it is in the file's name."""
REFUSED = {"21": "only a final line of each rank", "24": "single step without its time"}
"""Folder → why its logs have no step."""
EXCERPT = ("09", "19")
"""Whose excerpts are of other steps than the whole log: what was seen of the excerpt is right."""
RIGHT = (
    *("clock_step_s", "step_s_minus_eval", "median_step_s_if_batch_is_per_gpu"),
    *("median_step_s", "step_s_from_clock"),
)


def logs_folder():
    """Return where the logs are, as long as the environment says it; None: nowhere."""
    try:
        return field_file("logs")
    except pytest.skip.Exception:
        return None


LOGS = logs_folder()
FOLDERS = sorted(path.name for path in LOGS.iterdir()) if LOGS else []


def field_log(pattern):
    if LOGS is None:
        pytest.skip("the logs of the field are not here; SCALEBENCH_FIELD says where")
    (only,) = LOGS.glob(pattern)
    return str(only)


def right_step(meta, name, number):
    run = next((r for r in meta.get("runs", []) if r["file"] == name), meta.get("right", {}))
    if "pause_free_segments_step_s" in run:
        return median(run["pause_free_segments_step_s"])
    if number in EXCERPT:
        run = meta["prototype_on_excerpt"][name]
    if number == "19":
        return run["median_step_s"]
    return next(run[key] for key in RIGHT if run.get(key))


def summary_of(in_process, *words):
    done = in_process("import", *words, "--json", "--no-report", code=0)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("name", FOLDERS or ["none"])
def test_every_log_of_the_field_gives_its_step_or_its_reason(in_process, name):
    folder = Path(field_log(name))
    number = name[:2]
    meta = json.loads((folder / "meta.json").read_text())
    for path in sorted(folder.iterdir()):
        if path.name == "meta.json":
            continue
        log = str(path)
        if number in SAYS_NO_N:
            refused = complaint(in_process("import", log))
            assert "on how many GPUs" in refused and "gpus=" in refused
            in_name = re.search(r"\d+", path.name)
            log += f":gpus={SAYS_NO_N[number] or (in_name and in_name[0])}"
        (row,) = summary_of(in_process, log)[0]["rows"]
        if number in REFUSED:
            assert row["step_s"] is None
            assert REFUSED[number] in row["unavailable"]["step_s"]
            continue
        kind = "typical_step_s" if number == "19" else "step_s"
        assert row[kind]["value"] == pytest.approx(right_step(meta, path.name, number), rel=0.02)


def of(pattern, *sizes, told=True):
    return [field_log(pattern.format(n)) + (f":gpus={n}" if told else "") for n in sizes]


def test_what_else_the_field_says_is_right_as_well(in_process):
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


def test_jobs_that_do_different_work_have_no_efficiency(in_process):
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


def test_the_study_of_the_document_is_the_field_s(in_process, project):
    logs = of("22*/gpus{}.txt", 1, 2, 4, 8, told=False)
    done = in_process("import", *logs, "--name", "mask-rcnn", "--out", "study", code=0)
    (shown,) = blocks("docs/import.md", "text")
    llama, *_ = blocks("benchmarks/evidence.md", "text")
    assert shown.strip() in done.stdout
    logs = of("14*/h100-{}.txt", 512, 2048, 2432, 2560, 8192)
    done = in_process("import", *logs, "--per", "token", "--name", "llama31-405b", "--no-report")
    assert llama.strip() in done.stdout
    page = (project / "study" / "report.html").read_text()
    assert "the clock counts" in page and "maskrcnn-benchmark" in page
    assert "Predicted, not measured" in page  # at more ranks
    said = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page, flags=re.S)
    for word in ("traced", "--no-trace", "virtual hosts", "NVML", "the strategy itself",
                 "inspecting launch", "baseline's activations"):  # fmt: skip
        assert word not in said, re.findall(f".{{60}}{word}.{{60}}", said, re.S)


def test_the_examples_of_the_document(scalebench, project):
    (program,) = blocks("docs/import.md", "python")
    (project / "make_logs.py").write_text(program)
    made = subprocess.run([sys.executable, "make_logs.py"], timeout=PATIENCE_S)
    assert made.returncode == 0
    (own,) = blocks("docs/import.md", "toml")
    (project / "scalebench.toml").write_text(own)
    for arguments in commands("docs/import.md"):
        if "--follow" in arguments:
            continue
        scalebench(*arguments, code=0)
    table = scalebench("show", "before").stdout
    assert re.search(r"^job +1 .* 100 %", table, re.M) and "weak scaling" in table
    for export in ("junit", "csv", "openmetrics", "github-action-benchmark-bigger"):
        scalebench("export", "before", "--format", export, code=0)


def test_one_log_a_side_decides_nothing_and_says_what_would(in_process, project):
    for side, ms in (("base", 500), ("slow", 900)):
        for n in (1, 8):
            lines = (f"iter {i}: loss 4.0, time {ms + n + i % 5}.00ms\n" for i in range(40))
            (project / f"{side}-{n}.log").write_text("".join(lines))
        logs = (f"{side}-1.log:gpus=1", f"{side}-8.log:gpus=8")
        in_process("import", *logs, "--out", side, "--batch-per-gpu", "4", "--no-report")
    judged = in_process("gate", "--baseline", "base", "slow", "--all", code=3)
    told = " ".join(judged.stdout.split())
    assert "1 log a side: how much jobs of the same code differ is not in it" in told
    assert "--repeats" not in told
    for command in ("compare", "history"):
        in_process(command, "base", "slow", code=0)


def growing(folder, *sizes):
    """Write logs of weak scaling that loses 25 ms with every doubling, of a model of Megatron."""
    head = (
        "  num_layers ........ 24\n  hidden_size ....... 2048\n  padded_vocab_size . 51200\n"
        "  seq_length ........ 1024\n  num_attention_heads . 16\n  micro_batch_size .. 8\n"
        "  tensor_model_parallel_size .. 1\n  pipeline_model_parallel_size .. 1\n"
    )
    for n in sizes:
        ms = 1000 + 25 * (n.bit_length() - 1)
        lines = (
            f" iteration {i:8d}/ 100 | elapsed time per iteration (ms): {ms + i % 3}.0 | "
            f"global batch size: {8 * n} | lm loss: 9.1E+00 |\n"
            for i in range(1, 30)
        )
        (folder / f"of-{n}.log").write_text(f"  world_size ........ {n}\n{head}{''.join(lines)}")
    return [f"of-{n}.log" for n in sizes]


def test_sizes_that_no_log_is_of_are_projected(in_process, project):
    in_process("import", *growing(project, 8, 16, 32, 64), "--out", "grown", "--no-report")
    done = in_process("project", "grown", "--gpus", "128,512", "--json")
    found = json.loads(done.stdout)
    first, last = found["rows"]
    assert (first["global_batch"], first["rank_batch"]) == (1024, 8)
    assert first["step_s"] == pytest.approx(1.176, rel=0.005)
    assert last["step_s"] == pytest.approx(1.226, rel=0.005)
    assert first["efficiency"] == pytest.approx(1.076 / 1.176, rel=0.005)
    assert found["num_scored"] == 2 and first["low_s"] < first["step_s"] < first["high_s"]
    assert last["high_s"] / last["low_s"] > first["high_s"] / first["low_s"]
    table = in_process("project", "grown", "--gpus", "128").stdout
    words = " ".join(table.split())
    assert "predicted, not measured; fitted to the logs at N = 8, 16, 32, 64" in words
    assert "relative to N = 8" in words and "transfer" not in words
    links = in_process("project", "grown", "--gpus", "128", "--topology", "dgx-h100", code=0)
    assert "an all-reduce of" in " ".join(links.stdout.split())
    two = growing(project, 8, 16)
    in_process("import", *two, "--out", "two", "--no-report")
    told = in_process("project", "two", "--gpus", "32").stdout
    assert "no interval: a third N is needed" in " ".join(told.split())
    in_process("import", two[0], "--out", "one", "--no-report")
    for words, code, word in (
        (["one", "--gpus", "16"], 3, "one N"),
        (["grown", "--gpus", "128", "--gradient-bits", "8"], 2, "gradients of 8 bits"),
        (["grown", "--gpus", "128", "--noise-scale", "8"], 2, "a noise scale of 8"),
    ):
        assert word in complaint(in_process("project", *words), code)


def test_imported_rows_fit_the_search_s_model(in_process, project):
    in_process("import", *growing(project, 8, 16, 32), "--out", "grown", "--no-report")
    search = ("search", "--gpus", "64", "--gpu-type", "a100", "--workload", "gpt-1.3b")
    refused = complaint(in_process(*search, "--measured", "grown"))
    assert "does not say zero" in refused and "--measured grown:zero=…" in refused
    done = in_process(*search, "--measured", "grown:zero=1", "--json", code=0)
    assert "fitted to 3 rows of grown" in done.stdout
    for column, word in (
        ("zero=1,layers=12", "of-8.log says layers 24, and layers=12 was given"),
        ("zero=1,colour=2", "colour"),
        ("zero=x", "integer"),
    ):
        assert word in complaint(in_process(*search, "--measured", f"grown:{column}"))


def test_efficiency_per_token_and_per_flop(in_process, project):
    """The batch per GPU halves, or the model grows: only work per second can be compared."""
    for n, batch, layers, ms, tflops in ((8, 64, 24, 1000, 200), (16, 64, 48, 640, 180)):
        lines = (
            f" iteration {i:8d}/ 100 | elapsed time per iteration (ms): {ms}.0 | throughput per GPU"
            f" (TFLOP/s/GPU): {tflops}.0 | global batch size: {batch} | lm loss: 9.1E+00 |\n"
            for i in range(1, 30)
        )
        head = f"world_size ... {n}\nseq_length ... 1024\n"
        (project / f"token-{n}.log").write_text(
            head + "".join(lines).replace("64 |", f"{64 + n} |")
        )
        head += f"num_layers ... {layers}\n"
        lines = (line for line in (project / f"token-{n}.log").read_text().splitlines(True)[2:])
        (project / f"flop-{n}.log").write_text(head + "".join(lines))
    tokens, _ = summary_of(in_process, "token-8.log", "token-16.log", "--per", "token")
    rate = [(64 + n) * 1024 / s for n, s in ((8, 1.0), (16, 0.64))]
    assert [row["tokens_per_s"]["value"] for row in tokens["rows"]] == pytest.approx(rate)
    assert tokens["rows"][1]["efficiency"]["value"] == pytest.approx(rate[1] / rate[0] / 2)
    refused, _ = summary_of(in_process, "flop-8.log", "flop-16.log", "--per", "token")
    assert "--per flop compares FLOP/s" in refused["rows"][1]["unavailable"]["efficiency"]
    flops, _ = summary_of(in_process, "flop-8.log", "flop-16.log", "--per", "flop")
    assert flops["rows"][1]["efficiency"]["value"] == pytest.approx(180 / 200)


def test_transformers_says_the_batch_of_all_ranks(in_process, project):
    """Of each device, times ranks, times accumulation: the trainer's header has the product."""
    head = (
        "[INFO|trainer.py:2134] 2024-05-01 10:00:00,123 >> ***** Running training *****\n"
        "  Instantaneous batch size per device = 4\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 128\n"
        "  Gradient Accumulation steps = 4\n  Total optimization steps = 300\n"
    )
    bars = "\r".join(
        f" {i // 3}%|# | {i}/300 [{2 * i // 60:02}:{2 * i % 60:02}<05:45,  2.00s/it]"
        for i in range(1, 300)
    )
    (project / "hf.log").write_text(head + bars + "\n")
    (row,) = summary_of(in_process, "hf.log:gpus=8")[0]["rows"]
    assert (row["global_batch"], row["rank_batch"]) == (128, 16)
    assert row["step_s"]["value"] == pytest.approx(2.0, rel=0.01)
    assert row["throughput"]["value"] == pytest.approx(64, rel=0.01)
    other = in_process("import", "hf.log:gpus=8", "--batch-per-gpu", "4")
    assert other.returncode == 2 and "says that a step has 128 samples" in other.stderr


def test_bad_logs_are_one_line_each_and_the_rest_is_read(in_process, project):
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
    failed = in_process("import", "nan.log:gpus=8", "--no-report", "--out", "bad", code=4)
    assert "the loss is not finite from step 20 on" in failed.stdout
