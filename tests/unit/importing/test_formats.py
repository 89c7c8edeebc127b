import pytest

from scalebench.errors import UsageError
from scalebench.importing.formats import built_in, formats
from scalebench.importing.job import Stated, job_of
from scalebench.importing.steps import steps_of
from tests.builders.logs import DAY, LINES, every_2_s, job_in, log_of
from tests.examples import cases


@cases("name", *LINES)
def test_a_framework_s_lines_are_read_as_it_means_them(name, tmp_path):
    log = log_of(tmp_path, every_2_s(LINES[name]))
    assert log.format.name == name.split()[0]
    assert len(log.records) == 12
    steps = job_of(log, Stated(gpus=8, batch_per_gpu=8)).step_s
    assert steps == pytest.approx([2.0] * max(len(steps), 1), rel=0.001)


@cases(
    "name, column, value",
    *(("timm", "rate", 731.43), ("torchtitan", "rate", 8192), ("llm-c", "mfu", 0.551)),
    *(("olmo", "rate", 26676), ("paddle", "rate", 16), ("maxtext", "rate", 8671.9)),
    *(("deepspeed", "rate", 315.5), ("nanotron", "tflops", 400), ("verl", "rate", 3283.3)),
    *(("dllogger of Tacotron", "rate", 17340.7), ("dllogger of FastPitch", "rate", 5730.98)),
    *(("megatron-bridge", "tflops", 528.1), ("paddle of its model zoo", "rate", 4)),
    *(("stylegan", "rate", 32), ("key-value of NeMo Automodel", "rate", 11278.56)),
    ("torch-xla", "rate", 4),
)
def test_what_a_framework_prints_beside_its_times_is_read(name, column, value, tmp_path):
    log = log_of(tmp_path, every_2_s(LINES[name]))
    assert log.records.column(column) == pytest.approx([value] * 12, rel=1e-4)


@cases(
    "ranks, end, rate",
    (8, "total images/sec: 1188.51", 1188.51),
    (1, "total images/sec: 1188.51", 1188.51),  # one process has all GPUs
    (8, "", 8 * 148),  # Horovod: each rank prints its own
    (1, "", None),  # that of a rank or of all
)
def test_what_each_rank_of_tf_cnn_benchmarks_prints_is_its_own(ranks, end, rate, tmp_path):
    lines = [f"{i}\timages/sec: 148.0 +/- 0.0\t9.1" for i in (1, 10, 20) for _ in range(ranks)]
    job = job_in(tmp_path, ["Batch size:  512 global", "  64 per device", *lines, end])
    assert job.samples_per_s == (rate and pytest.approx(rate, rel=0.005))
    assert list(job.step_s) == pytest.approx([512 / 1184] * 3 * (ranks == 8))


def test_a_share_and_a_size_count_as_they_are_meant(tmp_path):
    """A size without its unit, of some thousands, is none in bytes."""
    for said, share, size in (
        ("mfu: 0.41 | memory: 4137", 0.41, None),
        ("mfu: 0.9% | memory: 8.5GB", 0.009, 8_500_000_000),
        ("MFU: 41.0 | memory: 8500000000", 0.41, 8_500_000_000),
        ("mfu: 0.41 | max_mem_gb=8.5", 0.41, 8_500_000_000),
        ("mfu: 0.41 | Peak memory (GiB): 8", 0.41, 2**33),
        ("mfu: 0.41 | mem 8.0 GiB | TFLOPs/GPU: 300", 0.41, 2**33),
    ):
        job = job_in(tmp_path, every_2_s("step: {i} | loss: 3.2 | step_time: 2.0 | " + said))
        assert (job.mfu, job.memory_bytes) == (pytest.approx(share), size)
    assert job.tflops_per_gpu == 300


@cases(
    "line",
    DAY + " seen {i}00 loss 2.0",
    "Epoch 1/5: 9%|#  | {i}00/4580 [00:{0:02d}<03:00, 50.1img/s, loss (batch)=2.0]",
)
def test_lines_that_count_samples_are_no_steps_without_the_batch(line, tmp_path):
    own = {"mine": {"step": "seen {step}", "step_in": "samples", "loss": "loss {}"}}
    log = log_of(tmp_path, every_2_s(line, steps=25), own=own)
    assert steps_of(log, 50).mean_s == pytest.approx(1.0)
    assert "give --batch-per-gpu" in job_of(log, Stated(gpus=8)).no_steps


@cases(
    "line, missing",
    (DAY + ".5: Pseudo dice [0.9]", "how many iterations an epoch has"),
    ("(epoch: 1, iters: {i}, time: 0.32, data: 0.1) G_GAN: 0.5", "of one image, without"),
)
def test_lines_that_tell_no_step_are_refused_with_what_is_missing(line, missing, tmp_path):
    with pytest.raises(UsageError, match=missing):
        log_of(tmp_path, every_2_s(line))


@cases("said", "loss=3.5", "Loss 3.5", "Loss = 3.5", "Train Loss: 3.5")
def test_a_loss_is_read_in_any_spelling(said, tmp_path):
    log = log_of(tmp_path, every_2_s(f"[GPU0] Step {{i}} | {said} | step_time 2.0"))
    assert log.records.loss == [3.5, 3.5]


def test_every_format_is_well_formed_and_has_a_name_for_its_framework():
    assert len(built_in()) >= 30
    assert all(form.about and form.words for form in built_in())


def test_a_user_s_own_format_comes_first(tmp_path):
    own = {"mine": {"step": "<<{step}>>", "time": "took {ms}", "loss": "l={}"}}
    log = log_of(tmp_path, every_2_s("<<{i}>> took 2000 l=1.5"), own=own)
    assert (log.format.name, log.records.loss) == ("mine", [1.5, 1.5])
    assert steps_of(log, None).mean_s == 2.0


@cases(
    "table, word",
    ({"step": "no hole"}, "{step}"),
    ({"step": "s {step}", "tim": "x {s}"}, "tim"),
    ({}, "step"),
)
def test_a_format_that_is_none_is_refused(table, word):
    with pytest.raises(UsageError, match="format mine") as error:
        formats({"mine": table}, "scalebench.toml")
    assert word in str(error.value)
