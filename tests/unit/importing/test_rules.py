"""The rules that logs of the field taught, each on a small log of its own."""

import random

import numpy as np
import pytest

from scalebench.errors import UsageError
from scalebench.importing.formats import formats
from scalebench.importing.job import Follower, Stated, job_of
from scalebench.importing.reader import read_log
from scalebench.importing.steps import steps_of
from scalebench.importing.templates import prefix_of
from tests.builders.logs import job_in, log_of, steps_in
from tests.examples import cases


def test_prefixes_tell_the_rank_the_host_and_the_clock():
    for text, who, rank in (
        ("[default3]:", "/3", 3),
        ("[rank12]: ", "/12", 12),
        ("[1,5]<stdout>: ", "/5", 5),
        ("7: ", "/7", 7),
        ("node-b: ", "node-b", None),
        ("trainer-1  | ", "trainer", None),
        ("(pretraining, pid=4112) ", "pretraining", None),
    ):
        assert prefix_of(text)[:2] == (who, rank), text
    two = prefix_of("2024-05-01T10:00:02.500Z [2024-05-01 10:00:01] ")
    assert (two.clock, two.resolution) == (prefix_of("2024-05-01 10:00:01 ").clock, 1.0)
    assert prefix_of("2024-05-01 10:00:00,250 ").resolution == pytest.approx(0.001)
    colon = prefix_of("2024-05-01 10:00:01.250000: step ")  # as TensorFlow writes it
    assert (colon.resolution, colon.clock) == (1e-6, prefix_of("2024-05-01 10:00:01.25 ").clock)
    assert prefix_of("10:00:01: step ").clock == 36001


@cases("endless", "1e999", "inf")
def test_an_endless_step_is_left_out(tmp_path, endless):
    lines = (f"step={i} loss=2.5 step_time={endless if i == 9 else 0.5}" for i in range(20))
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(0.5)


@cases(
    "front, said, rate",
    ("[default{r}]: ", "tokens/s: 1000", None),  # a rank's or the job's: nothing tells
    ("[default{r}]: ", "tokens/s/gpu: 1000", 4000),
    ("[default3]: ", "tokens/s: 4000", 4000),
    ("[default{r}]: ", "global tokens/s: 4000", 4000),
    ("", "tokens/s: 100{r}", None),  # who prints it is not said either
    ("", "tokens/s: 4000", 4000),
    ("[default{r}]: ", "tokens/s/gpu: 100{r}", 4006),  # of each its own
)
def test_rates_of_several_ranks_have_to_tell_whose_they_are(tmp_path, front, said, rate):
    line = f"{front}step: {{i}} | loss: 3 | {said}"
    lines = (line.format(i=i, r=r) for i in range(20) for r in range(4))
    found = job_in(tmp_path, dict.fromkeys(lines), gpus=4)
    assert found.tokens_per_s == (rate and pytest.approx(rate))
    assert any("nothing says whether" in notice for notice in found.notices) is (rate is None)


def test_a_time_of_all_steps_since_the_line_before_is_divided_by_them(tmp_path):
    lines = [f"Ep. 1 : Up. {i} : Sen. 9 : Time {i % 7 + 50}.0s : 9 words/s" for i in (20, 120, 220)]
    steps = steps_in(tmp_path, lines)
    assert list(steps.seconds) == pytest.approx([0.51, 0.53])
    assert (list(steps.counts), steps.averaged) == ([100, 100], True)


@cases(
    "said, rate",
    ("8000 tokens/s", 8000),
    ("8,000.0 tok/sec |", 8000),
    ("4000 tokens/s/GPU", 8000),
    ("4000 tokens/sec/device", 8000),
    ("tok/s/gpu 4000", 8000),
    ("tokens/sec/gpu: 4000", 8000),
    ("tok/s: 8000", 8000),
    ("aux 0.1 tok/s 8000", 8000),  # names stand before their numbers
    ("aux 0.1 tok/s/gpu 4000 lr 1e-4", 8000),
    ("aux 0.1 tokens/s 8000 | mem 3 GB", 8000),
    ("0.1 tok/s 8000", None),  # nothing tells
    ("seen 9000 tok/s 8000 words", None),
    ("eval tok/s 8000", None),
)
def test_a_rate_of_a_gpu_is_not_that_of_the_job(said, rate, tmp_path):
    log = log_of(tmp_path, [f"step {i} step_time: 1.0 loss: 0.3, {said}" for i in range(9)])
    assert job_of(log, Stated(gpus=2)).tokens_per_s == rate


@cases(
    "said",
    *("Step Time: 0.500s", "STEP_TIME=0.5", "iteration time = 500.0ms", "iter_time_ms: 500"),
    *("Time per iteration: 0.5 s", "time/iter: 500ms", "Step time (ms): 500", "step-time: 0.5"),
    *("Iters/sec: 2.0", "steps per second = 2", "Tokens per second: 8,192.0"),
    *("tok/sec: 8.192K", "Tokens/sec/GPU: 1024", "throughput(samples/s): 16", "Images/s=16.0"),
    *("optimizer step time: 0.2 | step time: 0.5", "max iter time: 0.9, iter time: 0.5"),
    *("local tokens/s: 1024 tokens/s: 8192", "mem: 20.1GB batch time: 0.5"),
    *("speed: 1024 toks/s/device", "8.192K tokens per second", "0.5 seconds per step"),
    *(
        "iter_dt 500ms | step 350 ms",
        "Speed (samples/sec) 16.0",
        '"step_time_ms": 500.0',
        "'dt': '0.5'",
    ),
)
@cases("head", "step {}", "Iter: {}/99", "[iteration {}]", "update={}")
def test_keys_are_read_in_any_spelling_and_only_whole(said, head, tmp_path):
    log = log_of(tmp_path, (f"{head.format(i)} | loss 3.1 | {said}" for i in range(20)))
    assert len(log.records) == 20
    job = job_of(log, Stated(gpus=8, batch_per_gpu=1, seq=512))
    assert np.mean(job.step_s) == pytest.approx(0.5)
    assert job.samples_per_s == pytest.approx(16)


@cases(
    "said",
    *("Avg step time: 0.5", "max iter time: 0.9", "optimizer step time: 0.2", "tps: 8192"),
    *("step time (cum): 0.5", "remaining iter time: 30", "eval samples/s: 900"),
    "0.174 sec/batch",  # TensorFlow's tutorial has divided it by the number of GPUs
)
def test_the_time_of_something_else_is_never_that_of_a_step(said, tmp_path):
    with pytest.raises(UsageError, match="no known format fits"):
        log_of(tmp_path, (f"step {i} | loss 3.1 | {said}" for i in range(20)))


@pytest.mark.filterwarnings("error")
@cases("said", "4 (2.0 sec)", "4 (0.0 sec)\nloss = 2, step = 5 (0.0 sec)")
def test_lines_that_leave_no_time_tell_no_steps(said, tmp_path):
    """The time of a single line is of all steps since one that is not there."""
    steps = steps_in(tmp_path, [f"INFO:tensorflow:loss = 2.3, step = {said}"])
    assert not len(steps.seconds) and steps.why_none


def test_a_rounded_step_number_is_passed_over(tmp_path):
    numbers = [f"{i}.0" for i in range(8991, 9010)]
    numbers[9:9] = ["9e+3", "9e300", "9" * 400]
    log = log_of(tmp_path, [f"global_step={i}, train_step_timing in s=0.615" for i in numbers])
    assert (len(log.records), log.notices) == (19, [])


@cases(
    "line",
    "{i}/3  3.45G  1.2: 100%|#| 463/463 [02:15<00:00,  3.42it/s]",
    "{i}/3  3.45G  1.2: 100% ━━━━ 463/463 3.4it/s 2:15",
    "Epoch {i}: 100%|#| 463/463 [02:15<00:00,  3.42it/s, v_num=0]",
)
def test_the_last_bar_of_each_epoch_tells_its_steps(line, tmp_path):
    validation = "mAP: 100% ━━━━ 8/8 2.1it/s 3.8s\nmAP: 100%|#| 8/8 [00:03<00:00,  2.17it/s]"
    lines = [text for i in range(1, 9) for text in (line.format(i=i), validation)]
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(1 / 3.42, rel=0.002)


@cases(
    "bar, mean_s",
    ("Training: {i}%|#| {i}/99 [{t}<9:00,  3.00s/step, loss=3.1, tok/s=1e4]", 3.0),
    ("Training: {i}%|#| {i}/99 [{t}<9:00,  1.20batch/s]", 3.0),
    ("Training: {i}%|#| {i}/99 [{t}<9:00,  3.00s/it, 9 samples/s]", 3.0),
    ("Iteration: {i}%|#| {k}/30 [{l}<9:00,  3.00s/it]", 3.0),  # begins again with each epoch
    ("Training: {i}%|#| {i}00/9900 [{t}<9:00, 33.33samples/s, loss=3.1]", None),
    ("Training: {i}%|#| {i}/99 [{t}<9:00,  3.00s/file]", None),
    ("Epoch: {i}%|#| {i}/99 [{t}<9:00,  3.00s/it]", None),
    ("Epochs: {i}%|#| {i}/99 [{t}<9:00,  3.00s/epoch, loss=3.1]", None),
    ("{i}/99 [{t}<9:00,  3.00s/epoch, loss=3.1]", None),
)
def test_a_bar_that_counts_epochs_or_samples_tells_no_steps(bar, mean_s, tmp_path):
    clocks = [f"{3 * i // 60:02}:{3 * i % 60:02}" for i in range(60)]
    again = [*range(31), *range(29)]
    lines = [bar.format(i=i, t=clocks[i], k=k, l=clocks[k]) for i, k in enumerate(again)]
    if mean_s is not None:
        assert steps_in(tmp_path, lines).mean_s == pytest.approx(mean_s, rel=0.004)
        return
    with pytest.raises(UsageError, match="no known format fits"):
        steps_in(tmp_path, lines)


def test_a_bar_of_all_epochs_does_not_begin_again_with_the_next_one(tmp_path):
    bars = [
        f"Epoch {epoch}: 1%|#| {i}/200 [{2 * i // 60:02}:{2 * i % 60:02}<0:05, 2.00s/it]"
        for i in range(200)
        for epoch in dict.fromkeys((max(i - 1, 0) // 50, i // 50))  # its name changes at a step
    ]
    assert steps_in(tmp_path, bars).mean_s == pytest.approx(2.0)


@cases(
    "line",
    "Epoch [{e}/9] step {i}/70 loss: 1.1 step time: {t}",
    "Epoch {e:05d} | Step {i:05d} | Loss 2.3 | step time {t}",
    "{head}Batch {i}/70 | loss: 1.1 | step time: {t}",
    "{head}best epoch: 1\nstep={i} loss=1.1 step_time={t}",
    "[rank0]: Epoch {e}, step {i}: loss 1.1, step time {t}",
)
def test_steps_that_begin_again_with_an_epoch_are_further_ones(line, tmp_path):
    """Short epochs were taken for lines of several ranks, of which the slowest counts."""
    lines = [
        line.format(e=e, i=i, t=0.5 + 0.1 * (e % 2), head=f"Epoch {e}/9\n" * (i == 0))
        for e in range(1, 9)
        for i in range(0, 70, 10)
    ]
    if "rank" in line:  # one that lags behind
        late = [text.replace("rank0", "rank1") for text in lines]
        lines = [text for two in zip([*lines, ""], ["", *late], strict=True) for text in two]
    log = log_of(tmp_path, ["epoch: 9", *lines])
    assert (len(log.records), log.notices) == (56, [])
    assert steps_of(log, None).mean_s == pytest.approx(0.55)


def test_colours_carriage_returns_and_packed_files_are_read(tmp_path):
    coloured = (
        f"2024-05-01 10:00:0{i},000 \x1b[36mstep: {i:2}  loss: 7.6  \x1b[34mtps: 8,192\x1b[0m"
        for i in range(9)
    )
    log = log_of(tmp_path, coloured, "\r")
    assert len(log.records) == 9
    assert log.records.columns["rate"][0] == 8192


def test_lines_of_several_ranks_are_one_step_and_their_rates_add_up(tmp_path):
    lines = [
        f"{rank}: TRAIN [0][{10 * i}/118]\tTime 0.{464 + rank} (0.406)\tTok/s {8000 + rank} (1)"
        for i in range(6)
        for rank in random.Random(i).sample(range(4), 4)
    ]
    log = log_of(tmp_path, lines)
    assert len(log.records) == 6 and log.records.ranks == {0, 1, 2, 3}
    assert set(log.records.columns["rate"]) == {32006.0}
    assert steps_of(log, None).mean_s == pytest.approx(0.467)


@cases(
    "line, mean_s",
    ("step={i} loss=2.0 elapsed={half:.1f}", 0.5),
    ("step {i} loss 2.0 time 10:00:{i:02}", None),
    ("step 10{i:02} loss 2.0 time: 50{i:02}", 1.0),
)
def test_a_time_since_the_beginning_or_of_the_day_is_never_that_of_a_step(line, mean_s, tmp_path):
    lines = [line.format(i=i, half=i / 2) for i in range(1, 40)]
    try:
        assert steps_in(tmp_path, lines).mean_s == pytest.approx(mean_s)
    except UsageError as error:
        assert mean_s is None and "no known format fits" in str(error)


@cases(
    "said",
    "data time 0.01 forward time 0.2",
    *(f"step_time: {time}" for time in ("1.2h", "3 m", "2 min 5 s", "12 hours", "1.5 hrs")),
)
def test_times_of_parts_hours_and_minutes_are_never_taken_for_seconds_of_a_step(said, tmp_path):
    with pytest.raises(UsageError, match="no known format fits"):
        log_of(tmp_path, [f"step {i} loss 2.0 {said}" for i in range(12)])


def test_steps_of_levanter_are_thousands_from_there_on(tmp_path):
    lines = [
        f"Progress on:train {'1.' + str(i) + 'k' if i > 9 else str(100 * i) + '.0'}it/2.00kit "
        f"elapsed:{20 * i if i < 10 else 220 + 2 * (i - 10)}:00"
        for i in [*range(1, 10), *range(10, 60)]
    ]
    log = log_of(tmp_path, lines)
    assert log.records.columns["step"][-1] == 1590
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(12.0)


SOME = "INFO {clock}step: {i}, 3.163 samples/sec, batch_loss: 0.4, time:3.1, lr:0.1"


@cases(
    "other",
    *("Checkpoint of step {i} took 1.2 s", "Saved step {i} in 1.2 s/step, loss 3"),
    *("eval step {i} loss 3.0 step_time 0.2", "[Validation] step {i}: dt 1.4 s"),
    *("val: step {i}, step time 1.2", "Evaluated step {i}: finished in 1.2 s"),
)
def test_a_line_of_an_evaluation_or_a_checkpoint_is_none_of_a_step(other, tmp_path):
    lines = [f"step {i} | loss 3.1 | step time 0.5" for i in range(20)]
    read_lines = steps_in(
        tmp_path, [text for i in range(20) for text in (lines[i], other.format(i=i))]
    )
    assert set(read_lines.seconds) == {0.5}


def test_a_time_that_may_be_of_several_steps_counts_only_where_a_clock_tells(tmp_path):
    each = [SOME.format(i=i, clock="") for i in range(40)]
    assert steps_in(tmp_path, each).mean_s == pytest.approx(3.1)
    tenth = [SOME.format(i=10 * i, clock="") for i in range(40)]
    assert "whether its time is of one of them or of all" in steps_in(tmp_path, tenth).why_none
    took = [f"Step {10 * i} took 5.0 s, loss 3.1" for i in range(40)]
    assert "whether its time is of one of them or of all" in steps_in(tmp_path, took).why_none
    clocks = (f"2024-05-01 10:{31 * i // 600:02}:{3.1 * i % 60:06.3f} " for i in range(60))
    clocked = [SOME.format(i=10 * i, clock=clock) for i, clock in enumerate(clocks)]
    found = steps_in(tmp_path, clocked)
    assert (found.mean_s, found.source) == (pytest.approx(0.31, rel=0.01), "clock")


@cases(
    "line",
    "1213/1213 [==============================] - 142s 117ms/step - loss: 0.1 - val_loss: 0.2",
    "1213/1213 ━━━━━━━━━━━━━━━━━━━━ 142s 117ms/step - accuracy: 0.9 - loss: 0.1",
    "1213/1213 - 142s - loss: 0.1760 - accuracy: 0.9 - 142s/epoch - 117ms/step",
)
def test_bars_of_keras_are_refused_with_the_reason(line, tmp_path):
    with pytest.raises(UsageError, match=r"Keras.*mean since an epoch began.*with the validation"):
        steps_in(tmp_path, [f"Epoch {i}/20\n{line}" for i in range(9)])


def test_micro_batches_add_up_to_their_step(tmp_path):
    lines = [
        f"iter {i} step {i // 2}: loss 3.5, iter time: {500 + 200 * (i % 2)}.00ms"
        + " (optimizer.step)" * (i % 2)
        for i in range(12)
    ]
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(1.2)


NEMO = (
    "Epoch 0:   0%|          | {micro}/9000 [00:01<17:48, 0.54it/s, global_step={step}.000, "
    "train_step_timing in s={s:.3f}, reduced_train_loss=2.390]"
)


@cases("accumulate", 1, 2, 8)
def test_bars_that_count_micro_batches_of_one_step_add_up(accumulate, tmp_path):
    lines = [
        NEMO.format(micro=i, step=i // accumulate, s=1 + 0.5 * (i % 2 == 0))
        for i in range(1, 20 * accumulate + accumulate // 2)
        for _ in range(1 + (i % 5 == 0))  # a bar is drawn again where its description changes
    ]
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(1.25 * accumulate, rel=0.02)


@cases("name", "micro ", "micro_step=", "Micro-batch: ", "accumulation_step=")
def test_micro_batches_that_are_numbered_within_each_step_add_up(name, tmp_path):
    lines = [f"step {i} {name}{k} batch time: 0.{5 + k}00" for i in range(20) for k in range(3)]
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(1.8)
    some = steps_in(tmp_path, [line for line in lines if f"{name}1" not in line])
    assert "some micro-batches of each step are not printed" in some.why_none


def test_a_micro_batch_that_is_a_size_leaves_a_line_a_step(tmp_path):
    lines = [f"step={i} micro_batch=4 step_time=0.5" for i in range(20)]
    assert steps_in(tmp_path, lines).mean_s == 0.5


@cases("accumulate", 20, 60)
def test_one_or_two_steps_do_not_tell_how_many_micro_batches_are_whole(accumulate, tmp_path):
    """A job that was stuck in one step had a step of as many seconds as it printed lines."""
    lines = [NEMO.format(micro=i, step=i // accumulate, s=1) for i in range(1, 39)]
    assert "from so few steps" in steps_in(tmp_path, lines).why_none


def test_a_step_of_which_a_micro_batch_says_no_time_is_left_out(tmp_path):
    lines = [NEMO.format(micro=i, step=i // 4, s=1) for i in range(1, 80)]
    lines[20] = lines[20].replace("train_step_timing in s=1.000", "train_step_timing in s=?")
    steps = steps_in(tmp_path, lines)
    assert set(steps.seconds) == {4.0}
    assert len(steps.seconds) == 18  # of 19 whole ones


LITGPT = "Epoch 1 | iter {micro} step {step} | loss train: 9.1, val: n/a | iter time: {s:.1f} ms"


@cases("line, accumulate", (LITGPT + " (step)", 4), (NEMO, 8))
def test_micro_batches_that_are_not_all_printed_tell_no_step(line, accumulate, tmp_path):
    lines = [line.format(micro=i, step=i // accumulate, s=1) for i in range(4, 200, 4)]
    steps = steps_in(tmp_path, lines)
    assert not len(steps.seconds)
    assert steps.why_none.startswith("one micro-batch of 4 is printed")


def test_cumulative_times_are_differenced_and_may_begin_again(tmp_path):
    at = [33000 + 160 * i for i in range(3)] + [114 + 160 * i for i in range(30)]
    lines = [
        f"step:{i}/99 train_loss:5.1 train_time:{t}ms step_avg:nanms" for i, t in enumerate(at)
    ]
    assert steps_in(tmp_path, lines).mean_s == pytest.approx(0.16)


def test_a_clock_of_one_second_gives_spans_and_pauses_are_cut_out(tmp_path):
    clock, bars = 12.0, []
    for i in range(1, 301):
        clock += 0.45 + (25.0 if i % 100 == 0 else 0)
        bars.append(f" 1%|# | {i}/1000 [{clock // 60:02.0f}:{int(clock % 60):02d}<05:45,  2.2it/s]")
    found = steps_in(tmp_path, ["Loading: 100%|#| 4/4 [00:01<00:00, 3.9it/s]", *bars])
    assert found.mean_s == pytest.approx(0.45, rel=0.01)
    assert found.pauses[0] >= 2 and found.pauses[1] == pytest.approx(25 * found.pauses[0], rel=0.05)


@cases("begin", "0/1000 [00:00<?, ?it/s]", "501/1000 [00:03<00:03, 167it/s]")
def test_steps_that_a_resumed_job_passes_over_are_none(begin, tmp_path):
    """transformers counts up to its checkpoint within seconds."""
    steps = ((i, 3 + 2 * (i - 501)) for i in range(502, 702))
    bars = [f" 1%|# | {i}/1000 [{t // 60:02d}:{t % 60:02d}<09:00,  2.0s/it]" for i, t in steps]
    found = steps_in(tmp_path, [" 0%|  | 0/1000 [00:00<?, ?it/s]", f" 0%|  | {begin}", *bars])
    assert found.mean_s == pytest.approx(2.0, rel=0.01)


def test_bars_of_other_things_are_no_training_however_long_they_take(tmp_path):
    others = ("Running tokenizer on dataset: {} examples/s]", "Fetching 900 files: {}it/s]")
    bars = [
        *(one.format(f"{i}| {i}/900 [{i}:00<1:00:00, 9.0") for one in others for i in range(40)),
        *(f" 1%|# | {i}/100 [00:{i:02d}<01:00,  1.0s/it]" for i in range(1, 50)),
    ]
    assert steps_in(tmp_path, bars).mean_s == pytest.approx(1.0)


def test_the_first_steps_are_left_out_while_they_differ(tmp_path):
    times = [44.9, 0.3, *[5.6] * 8]
    lines = [f"completed step: {i}, seconds: {t}, loss: 1" for i, t in enumerate(times)]
    found = steps_in(tmp_path, lines)
    assert (found.mean_s, found.warmup) == (pytest.approx(5.6), 2)


@cases(
    "line",
    "2024-05-01 10:{m:02}:{s:02},000 INFO step={i} loss=2.5",
    "2024-05-01 10:{m:02}:{s:02} INFO Epoch 0, batch {i}, loss[loss=2.5], tot_loss[loss=2.5]",
    "| epoch 001: {i} / 900 loss=9.2, wps=57.3, ups=0.5, wpb=99, num_updates={i}, wall={t}",
)
@cases("other", "Saving checkpoint to x", "| valid on 'x' subset |", "eval 0.3")
def test_a_clock_overlooks_no_evaluation_however_short(line, other, tmp_path):
    lines, t = [], 0
    for i in range(0, 400, 10):
        t += 20 + 15 * (i % 80 == 40)  # of an evaluation that a longer interval hides
        lines += [other] * (i % 80 == 40) + [line.format(i=i, t=t, m=t // 60, s=t % 60)]
    found = steps_in(tmp_path, lines)
    assert found.mean_s == pytest.approx(2.0)
    assert found.pauses == (5, pytest.approx(75.0))
    few = [f"2024-05-01 10:00:{2 * i:02} step={i} loss=2" for i in range(9)]
    few = [text for i in range(9) for text in [other] * (i % 3 == 2) + [few[i]]]
    assert steps_in(tmp_path, few).mean_s == pytest.approx(2.0)  # else nothing would be left
    every = [text for text in lines if text != other for text in (other, text)]
    assert steps_in(tmp_path, every).mean_s == pytest.approx(2.0 + 75 / 390)  # nothing tells


def test_an_evaluation_within_a_printed_step_is_a_pause(tmp_path):
    times = [560.0] * 20 + [9560.0] + [560.0] * 20
    lines = [f"iter {i}: loss 4.0, time {t}ms" for i, t in enumerate(times)]
    found = steps_in(tmp_path, lines)
    assert (found.mean_s, found.pauses) == (pytest.approx(0.56), (1, pytest.approx(9.0)))


def test_clock_and_printed_time_are_compared(tmp_path):
    lines = [
        f"2024-05-01 10:{i // 60:02}:{i % 60:02},000 step={i // 2} step_time=1.5 loss=1"
        for i in range(0, 200, 2)
    ]
    (told,) = steps_in(tmp_path, lines).notices
    assert "the clock says 2 s" in told and "+33.3 %" in told


def test_only_the_part_after_a_restart_counts(tmp_path):
    def part(first, last, ms, hour):
        return [
            f"[2024-05-01 {hour}:{i % 60:02}:00] iteration {i}/ 900 | elapsed time per iteration "
            f"(ms): {ms}.0 | lm loss: 1.0 |"
            for i in range(first, last)
        ]

    log = log_of(tmp_path, [*part(1, 50, 900, 10), "world_size ..... 8", *part(20, 60, 500, 12)])
    assert steps_of(log, None).mean_s == pytest.approx(0.5)
    assert "goes back from 49 to 20" in log.notices[0]


def test_a_further_rank_s_log_behind_the_first_is_no_restart(tmp_path):
    one = [f"2024-05-01 10:00:{i:02},000 step={i} step_time=1.0 loss=1" for i in range(50)]
    log = log_of(tmp_path, one + one)
    assert len(log.records) == 50 and not log.notices


@cases(
    "line",
    "[2024-05-01 10:00:00] iteration {i:8d}/ 9000 | elapsed time per iteration (ms): {t}.0 | "
    "throughput per GPU (TFLOP/s/GPU): {t}.5 | lm loss: {t}E-04 |",
    "2024-05-01 10:00:00,420 - mmdet - INFO - Epoch [{e}][{b}/100]\tlr: 2.0e-02, eta: 1:24:41, "
    "time: {t}.0, data_time: 0.009, memory: 3946, loss: 1.{t}",
    "step={i} step_time={t} val_step_time=9 loss=1.{t}",
    "step={i} step_time={t} loss=1.{t}\nstep={i} step_time={t} loss=1.{t}",
    "Epoch 0: 0%| | {i}/9000 [0:1<17:48, global_step={k}.0, train_step_timing in s={t}.0]",
)
def test_a_long_log_is_read_quickly_to_the_same_steps(line, tmp_path, monkeypatch):
    """Lines that break off, that are no next step, and a restart are read in full."""
    lines = [
        line.format(i=i, e=1 + i // 100, b=i % 100, k=i // 4, t=400 + i * i % 97)
        for i in [*range(1, 2000), *range(1500, 3000)]
    ]
    lines[700:700] = ["iteration 5/ no number", "saved step=1", lines[650][:30]]
    whole = log_of(tmp_path, lines)
    for name in ("MANY_LINES", "MOST_COMPARED"):
        monkeypatch.setattr(f"scalebench.importing.reader.{name}", 50)
    monkeypatch.setattr("scalebench.importing.templates.CHUNK", 5000)
    quick = log_of(tmp_path, lines)
    for name in ("step", "time", "copies"):
        assert list(quick.records.column(name)) == list(whole.records.column(name))
    assert quick.notices == whole.notices and "goes back" in whole.notices[0]
    assert quick.records.loss == pytest.approx(whole.records.loss, abs=0.1)


@cases(
    "key, name",
    ("world_size", "world_size"),
    ("n_layer", "layers"),
    ("hidden_size", "hidden"),
    ("num_params", "parameters"),
)
def test_a_log_of_two_jobs_is_refused(key, name, tmp_path):
    part = [f"iter {i}: loss 4.0, time 500ms" for i in range(30)]
    with pytest.raises(UsageError, match=f"two jobs: {name} is 8 and then 16"):
        log_of(tmp_path, [f"{key}: 8", *part, f"{key}: 16", *part])


@cases(
    "content, word",
    (b"", "is empty"),
    (b"\n\n", "is empty"),
    (b"\x7fELF\0\0\0\0step=1", "is binary"),
    (b"hello 1\n", r"nearest: .*\[formats.mine\]"),
)
def test_what_is_no_log_is_refused_in_one_line(content, word, tmp_path):
    path = tmp_path / "bad.log"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=word) as error:
        read_log(path, formats())
    assert "\n" not in str(error.value)


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    path = tmp_path / "cut.log"
    lines = [f"iter {i}: loss 4.0, time 500.00ms" for i in range(9)]
    path.write_text("\n".join(lines)[:-4])
    log = read_log(path, formats())
    assert len(log.records) == 8 and "has no end" in log.notices[0]


def test_one_line_that_looks_like_a_step_decides_nothing(tmp_path):
    lines = [f"completed step: {i}, seconds: 2.0, loss: 1" for i in range(9)]
    known = formats({"mine": {"step": "warmup step {step}", "time": "time {s}", "general": True}})
    path = tmp_path / "train.log"
    path.write_text("\n".join(["warmup step 1 time 3", *lines, ""]))
    assert read_log(path, known).format.name == "maxtext"


def test_a_log_that_grows_is_followed(tmp_path):
    path = tmp_path / "train.log"
    follower = Follower(path, Stated(gpus=8, batch_per_gpu=4), list(formats()))
    assert follower.look() == "no step yet"
    with path.open("a") as log:
        log.writelines(f"iter {i}: loss 4.0, time 500.00ms\n" for i in range(10))
        log.write("iter 10: lo")
        log.flush()
        assert follower.look() == "step 9 · 0.5 s a step · last 0.5 s · 64 samples/s · loss 4"
        log.write("ss 3.5, time 250.00ms\n")
    assert follower.look().startswith("step 10 · ") and follower.look().endswith("loss 3.5")
