import json

import numpy as np
import pytest

from scalebench.gate.gate import compare
from scalebench.gate.results import Results
from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, import_log
from scalebench.importing.records import facts_of
from scalebench.importing.steps import steps_of
from scalebench.importing.templates import prefix_of
from scalebench.records.summary import ImportedRun
from scalebench.session.imported import store_imported
from tests.builders.logs import LINES, every_2_s, job_in, log_of, steps_in
from tests.examples import cases
from tests.recorded import pairs, sections

CARRIED = {
    "a rank": "[rank3]:{}".format,
    "srun": "0: {}".format,
    "a host": "worker-1: {}".format,
    "Ray": "(TrainWorker pid=4112, ip=10.0.0.3) {}".format,
    "Kubernetes": "2025-03-01T00:00:00.123456789Z stdout F {}".format,
    "kubectl": "2025-03-01T00:00:00.123456789Z {}".format,
    "grep": "train.log:{}".format,
    "TorchX": "trainer/0 {}".format,
    "accelerate": "05/01/2024 10:00:00 - INFO - __main__ - {}".format,
    "a cloud": "2025-03-01 00:00:00.000 UTC {}".format,
    "stern": "trainer-0 pytorch 2025-03-01T00:00:00.123456789Z {}".format,
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout"}),
    "Docker with clocks": lambda line: json.dumps(
        {"log": f"{line}\n", "stream": "stderr", "time": "2025-03-01T00:00:00.123456789Z"}
    ),
}
PRINTED = {
    "modded-nanogpt": "step:{i}/99 train_loss:5.1 train_time:{ms}ms step_avg:nanms",
    "tf-cnn-benchmarks": "{i}\timages/sec: 500.0 +/- 0.0 (jitter = 0.0)\t7.9",
    "fms-fsdp": "step: {i}\nloss: 9.1\ncurrent step time: 0.5",
    "mllog": ':::MLLOG {{"time_ms": {ms}, "key": "tracked_stats", "value": '
    '{{"train_step_time": 0.5, "step": {i}}}}}',
    "tinygrad": "{i:5} 500.00 ms run, 11.8 loss, 0.1 LR, 642.43 GB used,  19644.30 GFLOPS",
    "xlm": "- {i:6d} -   32.00 sent/s -  1020.1 words/s - MLM-en:  10.1",
}


@cases("carrier", *CARRIED)
@cases("name", *PRINTED)
def test_what_carries_a_line_changes_none_of_its_numbers(name, carrier, tmp_path):
    def job_by(carry):
        printed = "\n".join(PRINTED[name].format(i=i, ms=500 * i) for i in range(1, 30))
        job = job_in(tmp_path, map(carry, printed.split("\n")), batch_per_gpu=1)
        return job.format, job.step_s, job.samples_per_s

    alone = job_by("{}".format)
    assert job_by(CARRIED[carrier]) == alone
    assert alone[0] == name


@cases(
    "said, mean_s",
    ("step_time: 0,532 s", 0.532),
    ("step_time: 1,53 s", 1.53),
    ("step_time: 532,25 ms", 0.53225),
    ("step_time: 1,234.5 ms", 1.2345),
    ("step_time: 1.5, mem: 3", 1.5),
    ("step_time: 1,532 s", None),  # a thousand or one and a half: nothing tells
)
def test_a_comma_may_stand_before_decimals(said, mean_s, tmp_path):
    steps = steps_in(tmp_path, (f"step {i} loss 2,{i} {said}" for i in range(9)))
    assert (steps.mean_s if len(steps.seconds) else None) == pytest.approx(mean_s)


@cases("counted", 100, 100 * 2304)
def test_a_step_of_mlperf_counts_steps_or_samples_whichever_its_throughput_says(counted, tmp_path):
    head = ':::MLLOG {"time_ms": %d, "key": "%s", "value": %s, "metadata": {"step": %d}}'
    lines = [head % (290_000 * i, "tracked_stats", '{"throughput": 794.5}', counted * i)
             for i in range(20)]  # fmt: skip
    job = job_in(tmp_path, [head % (0, "global_batch_size", "2304", 0), *lines])
    assert set(job.step_s) == {2.9} and job.samples_per_s == pytest.approx(794.5, rel=1e-3)


def test_a_line_that_names_a_step_and_says_nothing_of_it_is_none(tmp_path):
    warning = "wandb: WARNING Step must only increase in log calls.  Step 3 < 5; dropping {'x': 3}."
    lines = [f"step: {i} | loss: 2.{i} | step_time: 0.5" for i in range(30)]
    log = log_of(tmp_path, [*lines[:20], warning, *lines[20:]])
    assert (len(log.records), log.notices) == (30, [])


def test_a_clock_of_microseconds_needs_no_more_memory_than_others(tmp_path):
    """Ten days of such a clock were cut into ten thousand million spans."""
    days = enumerate(range(10, 200, 20), 1)
    lines = (f"2024-05-{day:02} 10:00:00.123456 step {k} loss 3.{k}" for day, k in days)
    steps = steps_in(tmp_path, lines)
    assert (steps.mean_s, steps.source) == (86400 / 20, "clock")


@cases("carrier", "", "0: ", "worker-1: ", "[1,0]<stdout>:")
def test_the_last_lines_of_ranks_add_up_behind_any_prefix(carrier, tmp_path):
    line = "Done benchmarking. Total images: 9000\ttotal time: 4{0}.1\tMedian images/sec: 21{0}.5"
    lines = [carrier + line.format(rank) for rank in range(4)]
    # one was seen twice, and the last has no end
    job = job_in(tmp_path, "\n".join([*lines, lines[0]]), gpus=None)
    assert (job.world_size, job.samples_per_s) == (4, pytest.approx(848.0))


@cases("carrier", "worker-1: ", "0: ", "train-1  | ", "(TrainWorker pid=7) ")
def test_the_rank_that_stands_next_to_its_line_is_the_program_s_own(carrier):
    assert prefix_of(carrier + "3: ").rank == 3
    assert prefix_of(carrier + "[rank3]: ").rank == 3


BAR = "Epoch {}: 100%|##| 61/61 [00:24<00:00,  2.44it/s, v_num=0, train_loss_step=1.3]"


@cases(
    "other",
    "Validation DataLoader 0: {0:3}%|#| {0}/38 [00:05<00:00,  7.16it/s]",
    "Evaluating: {0}/38 [00:05<00:00,  7.16it/s]",
    " {0:3}%|#  | {0}/38 [00:{0:02}<00:00,  7.16it/s]",
)
def test_bars_that_are_drawn_more_often_are_not_the_training(other, tmp_path):
    drawn = [other.format(n) for n in (1, 2, 9, 14)]
    steps = steps_in(tmp_path, [BAR.format(0), *drawn, BAR.format(1), *drawn])
    assert steps.mean_s == pytest.approx(0.4, rel=0.02)


@cases(
    "bar, mean_s",
    (BAR.format(0), 1 / 2.44),
    ("Epoch 0:   1%| | 795/77225 [9:07:58<878:01:48, 41.36s/it, global_step=794.0]", 41.36),
)
def test_of_one_line_of_a_bar_the_rate_that_it_shows_counts(bar, mean_s, tmp_path):
    log = log_of(tmp_path, [bar])
    assert steps_of(log, None).mean_s == pytest.approx(mean_s)
    assert "the rate that it shows counts" in log.notices[0]


def test_a_clock_that_tells_less_than_the_median_of_a_window_leaves_it(tmp_path):
    lines = (
        f"[04/13 23:5{i}:12 d2.utils.events]:  eta: 3 days, 0:24:23  iter: {20 * i}  "
        f"total_loss: 59.9  time: {s}  last_time: 0.7  data_time: 0.0058  max_mem: 13632M"
        for i, s in ((1, 3.04), (2, 3.03))
    )
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(3.035)


def test_a_step_that_holds_a_test_or_a_checkpoint_is_none(tmp_path):
    held = {4: " - timing_s/testing:1.5", 8: " - timing_s/save_checkpoint:1.0"}
    lines = (
        f"step:{i} - timing_s/step:{2 + i % 2 + (i in held)}{held.get(i, '')} - x:1"
        for i in range(12)
    )
    assert sorted(steps_in(tmp_path, lines).seconds) == [2.0] * 4 + [3.0] * 6


@cases(
    "line, rate",
    (LINES["megatron"] + " samples per second: 32.0 | tokens per gpu per second (tgs): 9.5 |", 76),
    (LINES["megatron"] + " tokens/sec/gpu: 9.5 |", 76),
    (LINES["nemo"].replace(" | consumed", " | tokens_per_sec_per_gpu: 9.5e+00 | consumed"), 76),
    (LINES["paddlenlp"] + ", interval_tokens_per_second_per_device: 9.5", 76),
    (LINES["fairseq with the parts of its wall"], 1613 / 2),  # its rate is of all since the start
    *((LINES[name], 8 * 32) for name in ("paddle of PaddleOCR", "paddle of PaddleClas")),
    (LINES["paddle of PaddleFleetX"], 76),
)
def test_a_rate_is_that_of_the_job(line, rate, tmp_path):
    job = job_in(tmp_path, every_2_s(line))
    assert (job.tokens_per_s or job.samples_per_s) == pytest.approx(rate)


def test_samples_of_one_step_over_the_time_of_several_are_no_rate(tmp_path):
    line = "global_step: {i}0, interval_runtime: 20.0, interval_samples_per_second: 3.2, "
    lines = every_2_s(line + "interval_steps_per_second: 0.5, loss: 9.2, epoch: 0.1")
    job = job_in(tmp_path, lines)
    assert (job.step_s[0], job.samples_per_s) == (pytest.approx(2.0), None)
    assert job_in(tmp_path, lines, batch_per_gpu=4).samples_per_s == pytest.approx(16.0)


@cases(
    "end, samples",
    ("{'train_runtime': 400, 'train_samples_per_second': 8.2, 'train_steps_per_second': 1}", 8.2),
    ("DLL - e2e_train_time : 9 s training_sequences_per_second : 517.4 sequences/s", 517.4),
    ("[worker :0]   train_runtime   =  0:46:45.60\n  train_samples_per_second  =   3.65", 3.65),
)
def test_samples_per_second_may_be_said_at_the_end_alone(end, samples, tmp_path):
    job = job_in(tmp_path, ["starting", end])
    assert (job.format, job.samples_per_s) == ("totals", pytest.approx(samples))


@cases(
    "said, mean_s",
    ("", None),
    ("Total optimization steps = 20", 140.0),
    ("Total optimization steps = 90", None),  # it stopped early
    ("100%|##| 20/20 [46:40<00:00, 99.9s/it]", 140.0),
)
def test_a_total_over_steps_that_are_known_to_one_digit_needs_their_number(said, mean_s, tmp_path):
    end = "{'train_runtime': '2800', 'train_steps_per_second': '0.007', 'train_loss': '0.7'}"
    steps = steps_in(tmp_path, [said, end, said])
    assert [steps.mean_s if len(steps.seconds) else None] == [mean_s]
    assert mean_s or "not of how many steps" in steps.why_none


FACTS = [
    (name, *fact)
    for name, rows in sections("facts_in_logs.txt").items()
    for fact in pairs(rows).items()
]


@cases("name, said, number", *FACTS)
def test_a_log_says_how_many_ranks_and_samples_there_are(name, said, number):
    found = facts_of(f"a line\n{said}\nand one more 7\n").number(name)
    assert found == (None if number == "none" else float(number))


SMI = "|   {}  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |      0 |\n"


@cases(
    "said, ranks, hint",
    ("torchrun --nnodes=2 --nproc_per_node=8 train.py", 16, ""),
    ("torchrun --standalone --nproc-per-node 4 train.py", 4, ""),
    ("torchrun --nproc_per_node 8 train.py", None, "torchrun starts 8 ranks a node"),
    ("torchrun --nnodes=12:16 --nproc_per_node=8 train.py", None, "8 ranks a node"),
    ("world_size: 6\ntorchrun --nnodes=2 --nproc_per_node=8 train.py", 6, ""),
    ("SLURM_NTASKS=4", None, "it says SLURM_NTASKS=4, which may be one node's"),
    (SMI.format(0) + SMI.format(1) + SMI.format(1), None, "nvidia-smi shows 2 GPUs"),
)
def test_what_a_launcher_says_is_a_size_only_where_it_is_of_all_nodes(said, ranks, hint):
    found = facts_of(f"a line\n{said}\n")
    assert found.number("world_size") == ranks
    assert hint in "; ".join(found.suggests) and bool(hint) is bool(found.suggests)


def test_what_a_log_says_more_than_once_counts_where_it_is_the_same():
    found = facts_of("IMS_PER_BATCH: 8\nSOLVER:\n  IMS_PER_BATCH: 16\nn_layer: 12\nn_layer=12\n")
    assert (found.number("global_batch"), found.number("layers")) == (16, 12)
    found.merge(facts_of("n_layer: 24\narch: resnet50\nTPU_NAME=a\ntorch==2.1.0\n"))
    assert (found.number("layers"), found.model, found.gpu) == (None, "resnet50", "TPU")
    found.merge(facts_of("arch: resnet18\nGPU 0: Tesla V100-SXM2-32GB\ntorch==2.2.0\n"))
    assert (found.model, found.gpu, found.software["torch"]) == ("resnet50", "TPU", "2.1.0")
    assert facts_of("torch==2.1.0, and\ntorch==2.2.0.\ntorch==2.1.0").software["torch"] == (
        "2.1.0, 2.2.0"
    )
    assert facts_of("local world_size: 8\nworld_size: 0\nparallel world_size: 4").numbers == {}


def side(folder, seed, slower=0.0, head="", num_runs=5):
    """Runs of a training whose sequences grow, of 300 steps; runs differ by 0.1 %."""
    generator = np.random.default_rng(seed)
    course = np.repeat([0.2, 0.3, 0.4], 100)
    logs = []
    for run in range(num_runs):
        pace = (1 + slower) * (1 + generator.normal(0, 0.001))
        steps_ms = 1000 * pace * course * (1 + generator.normal(0, 0.01, 300))
        path = folder / f"{seed}-{run}.log"
        lines = (f"iter {i}: loss 4.0, time {ms:.2f}ms\n" for i, ms in enumerate(steps_ms))
        path.write_text(head + "".join(lines))
        logs.append((path, Stated(gpus=8)))
    return Results(f"run-{seed}", (stored(folder / f"run-{seed}", logs).summary,))


def stored(folder, logs):
    """Import logs, each with what is stated of it."""
    imported = [import_log(path, stated, list(formats())) for path, stated in logs]
    run = ImportedRun(case="job", logs=imported)
    return store_imported(run, ["scalebench", "import"], folder)


@cases("slower, verdict", (0.0, "unchanged"), (0.01, "regressed"))
def test_one_percent_is_found_in_a_training_whose_steps_grow(slower, verdict, tmp_path):
    found = compare(side(tmp_path, 1), side(tmp_path, 2, slower))
    step = next(row for row in found.rows if row.metric == "step_s")
    assert step.verdict == verdict
    assert step.low < slower < step.high and step.high - step.low < 0.01


HEAD = (
    "Running pytorch {torch} compiled for CUDA 12.4\n"
    "| NVIDIA-SMI {driver}     Driver Version: {driver}     CUDA Version: 12.2 |\n"
    "|   0  NVIDIA H100 80GB HBM3     On  | 00000000:19:00.0 Off |     0 |\n"
)
OLD = HEAD.format(torch="2.6.0+cu124", driver="535.183.06")


@cases(
    "head, name",
    (HEAD.format(torch="2.6.0+cu124", driver="580.126.09"), "driver"),
    (HEAD.format(torch="2.7.1+cu126", driver="535.183.06"), "torch"),
    (OLD.replace("H100 80GB HBM3", "H200"), "devices"),
)
def test_jobs_on_another_driver_torch_or_gpu_are_compared_only_where_it_is_allowed(
    head, name, tmp_path
):
    old, new = side(tmp_path, 1, head=OLD), side(tmp_path, 2, 0.02, head)
    (refused, *_), (told,) = (found := compare(old, new)).rows, found.mismatches
    assert (refused.verdict, told.name) == ("not comparable", name)
    allowed = compare(old, new, allowed=[name]).rows[0]
    assert allowed.low < 0.02 < allowed.high
    unsaid = compare(side(tmp_path, 3), old)
    assert unsaid.rows[0].verdict != "not comparable"
    assert any("only one side's logs name it" in note for note in unsaid.notes)


def test_steps_that_are_all_printed_alike_tell_no_interval_and_one_size_no_scaling(tmp_path):
    def rows(*sizes):
        logs = [(tmp_path / f"{n}.log", Stated(gpus=n, batch_per_gpu=8)) for n in sizes]
        return stored(tmp_path / str(sizes), logs).summary.rows

    for gpus, step_s in ((1, "0.1"), (2, "0.1038"), (4, "0.11")):
        lines = [f"step {i} | step_time {step_s} s\n" for i in range(60)]
        (tmp_path / f"{gpus}.log").write_text("".join(lines))
    found = [row.efficiency for row in rows(1, 2, 4)]
    assert [one and one.value for one in found] == pytest.approx([1, 0.1 / 0.1038, 0.1 / 0.11])
    assert [one and one.low for one in found[1:]] == [None, None]
    assert [row.scaling for row in rows(1, 2)] == ["weak", "weak"]
    assert [row.scaling for row in rows(2)] == ["unknown"]


@cases("batches, told", ((1201.2, 1201.5, 1201.3), []), ((64, 64, 128), ["64 to 128"]))
def test_a_batch_that_changes_is_said_and_one_that_varies_by_little_is_not(batches, told, tmp_path):
    lines = (LINES["fairseq-epochs"].replace("bsz 64", f"bsz {size}") for size in batches)
    said = [line.format(i, i=i) for i, line in enumerate(lines, 1)]
    job = job_in(tmp_path, said)
    assert job.step_s[0] == pytest.approx(2.0)
    notices = [one for one in job.notices if "batch" in one]
    assert len(notices) == len(told) and all(x in y for x, y in zip(told, notices, strict=True))
