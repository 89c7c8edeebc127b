import gzip
import json
import re

import numpy as np
import pytest

from scalebench.errors import UsageError
from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, job_of
from scalebench.importing.reader import read_log
from scalebench.importing.steps import steps_of
from scalebench.importing.tables import read_table
from tests.examples import cases


@pytest.fixture
def write(tmp_path):
    """Write a table: text, bytes, one object a line, or JSON where the name ends so."""

    def write(content, name="own.csv"):
        path = tmp_path / name
        if not isinstance(content, str | bytes):
            whole = name.endswith(".json")
            content = json.dumps(content) if whole else "\n".join(map(json.dumps, content)) + "\n"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def read(write):
    return lambda content, name="own.csv", **columns: read_table(write(content, name), columns)


@pytest.fixture
def mean_of(read):
    return lambda *content, **columns: steps_of(read(*content, **columns), None).mean_s


def test_columns_are_known_by_their_names_or_named(mean_of):
    rows = "".join(f"{i},{10 + 0.5 * i},{500},{2.5}\n" for i in range(20))
    lightning = "step,_timestamp,took_ms,train_loss\n" + rows
    assert mean_of(lightning) == mean_of(lightning, time="took_ms") == pytest.approx(0.5)
    with pytest.raises(UsageError, match=r"no column nothing.*took_ms"):
        mean_of(lightning, time="nothing")
    with pytest.raises(UsageError, match="value for --column"):
        mean_of(lightning, tim="took_ms")


@cases("number", "inf", "-inf", "nan", "1e999", "1e300")
@cases("column", *range(3))
def test_a_number_that_is_none_is_left_out(read, column, number):
    rows = [[str(i), str(1_700_000_000 + 0.5 * i), "0.5", "2.5"] for i in range(20)]
    rows[9][column] = number
    log = read("step,_timestamp,step_time,loss\n" + "".join(",".join(r) + "\n" for r in rows))
    assert not log.notices
    assert steps_of(log, None).mean_s == pytest.approx(0.5)


@cases(
    "in_blocks, column, rate",
    (True, "tokens_per_s", None),  # of a rank, or of the job: nothing tells
    (False, "tokens_per_s", None),
    (True, "tokens_per_s_per_gpu", 4006),
    (False, "global_tokens_per_s", 1000),
)
def test_ranks_of_a_table_are_one_job_whose_slowest_counts(read, in_blocks, column, rate):
    steps, ranks = range(20), (2, 0, 3, 1)  # rank 2 is slowest, and its block the first
    at = [(r, i) for r in ranks for i in steps]
    at = at if in_blocks else sorted(at, key=lambda one: one[1])
    each = 0 if column.startswith("global") else 1
    rows = "".join(f"{r},{i},{0.8 if r == 2 else 0.5},{1000 + r * each}\n" for r, i in at)
    log = read(f"rank,step,step_time,{column}\n" + rows)
    assert not log.notices
    found = job_of(log, Stated(gpus=4))
    assert found.step_s == pytest.approx([0.8] * len(found.step_s)) and len(found.step_s) > 10
    assert found.tokens_per_s == (rate and pytest.approx(rate))
    assert any("the rank's or the job's" in said for said in found.notices) is (rate is None)


@cases("head", "rank,", "")
@cases("rank", 0, 8)
def test_the_rate_of_one_rank_or_of_none_is_that_of_the_job(read, head, rank):
    rows = "".join(f"{rank},{i},4000\n"[0 if head else 2 :] for i in range(20))
    job = job_of(read(f"{head}step,tokens_per_s\n" + rows), Stated(gpus=4))
    assert job.tokens_per_s == pytest.approx(4000)


CSV = "step,when,loss\n" + "".join(
    f'"{100 * i:,}",2024-05-01T10:{i:02}:00.5Z,1.5\n' for i in range(1, 40)
)


@cases(
    "name, content",
    ("packed.csv.gz", gzip.compress(CSV.encode())),
    ("of-windows.csv", CSV.replace("\n", "\r\n").encode("utf-16")),
    ("semicolons.csv", re.sub(r'"(\d)?,?(\d+)"', r"\1\2", CSV).replace(",", ";")),
    ("spaces.csv", re.sub(r",(?=2024|when|1.5)", ", ", CSV)),
    ("marked.csv", CSV.encode("utf-8-sig")),
)
def test_a_table_is_read_as_spreadsheets_and_other_systems_write_it(name, content, mean_of):
    assert mean_of(content, name, clock="when") == pytest.approx(0.6)


@cases(
    "head, first, step",  # what a row says of its time, and by how much it grows in 0.5 s
    ("timestamp", 1714557600_000_000_000, 500_000_000),
    ("timestamp", 1714557600_000_000, 500_000),
    ("time", 1714557600_000, 500),
    ("ts", 1714557600.0, 0.5),
    ("elapsed", 0, 0.5),
    ("elapsed=up_minutes", 0, 0.5 / 60),
    ("time", 100, 0.5),
    ("time=took_us", 500_000, 0),
    ("time=took (ns)", 500_000_000, 0),
)
def test_a_time_counts_in_the_unit_that_it_can_only_have(head, first, step, mean_of):
    name, _, column = head.partition("=")
    rows = ({"step": i, column or name: first + step * i} for i in range(1, 60))
    assert mean_of(rows, "log.jsonl", **({name: column} if column else {})) == pytest.approx(0.5)


@cases(
    "name, of_job, unit",
    ("tokens_per_sec", 4000, "tokens"),
    ("tokens_per_sec_per_gpu", 32000, "tokens"),
    ("throughput/device/tokens_per_sec", 32000, "tokens"),
    ("throughput(tps)", 32000, "tokens"),
    ("device/samples_per_sec", 32000, "samples"),
)
def test_a_rate_of_one_device_is_not_that_of_the_job(name, of_job, unit, read):
    job = job_of(read(f'step,"{name}",mfu(%)\n1,4000,41\n2,4000,41\n'), Stated(gpus=8))
    assert (job.tokens_per_s if unit == "tokens" else job.samples_per_s) == of_job
    assert job.mfu == pytest.approx(0.41)


def test_metrics_of_openmmlab_begin_again_with_each_epoch_and_leave_out_the_validation(read):
    """Ten lines an epoch, each the mean of its steps; the same numbers come again."""
    lines = [{"env_info": "Python 3.8", "seed": 0}]
    for epoch in range(1, 4):
        said = {"epoch": epoch, "lr": 0.02, "data_time": 0.01}
        lines += [
            {"mode": "train", **said, "iter": i, "time": epoch, "loss": 9.0 - i / 1000}
            for i in range(50, 550, 50)
        ]
        lines += [{"mode": "val", **said, "iter": 40, "time": 7.0, "loss": 1.0}]
    log = read("".join(f"{json.dumps(one)}\n" for one in lines), "run.log.json")
    assert list(log.records.column("step")[8:12]) == [450, 500, 550, 600]
    job = job_of(log, Stated(gpus=8))
    assert (len(job.step_s), sum(job.step_s), job.loss_last) == (30, 60, 8.5)


@cases(
    "head, number, step_s",
    ("perf/Step Time (ms)", 500, 0.5),
    ("ms_per_step", 500, 0.5),
    ("train/sec_per_step", 0.5, 0.5),
    ("iters/sec", 2, 0.5),
    ("tokens_per_sec_per_gpu", 2048, 0.25),
    ("img/s/gpu", 16, 0.5),
)
def test_columns_may_be_called_as_in_lines_of_text(head, number, step_s, read):
    log = read(f"step,{head}\n1,{number}\n2,{number}\n3,{number}\n")
    job = job_of(log, Stated(gpus=8, batch_per_gpu=8, seq=64))
    assert job.step_s == pytest.approx([step_s] * 3)


def test_json_that_is_none_is_read_as_text(read):
    """DLLogger's file, by its usual name."""
    assert read("DLLL {}\nDLLL {}\n", "dllogger.json") is None


def table(head, row, steps=40):
    rows = (row.format(i=i, s=1714557600 + 2.5 * i, t=2.5 * i, ms=1714557600000 + 2500 * i)
            for i in range(0, 10 * steps, 10))  # fmt: skip
    return "\n".join([head, *rows]) + "\n"


RUN = '"lucky-dust-3 - {0}","lucky-dust-3 - {0}__MIN","lucky-dust-3 - {0}__MAX"'
THREE = '"{i}","{i}","{i}"'
WALL = f'"Wall Time",{RUN.format("_step")},{RUN.format("train/loss")}'


@cases(
    "head, row",
    # A chart of W&B over its process's time, over the clock; a history; a table of each step.
    (f'"Relative Time (Process)",{RUN.format("_step")}', '"{t}",' + THREE),
    (WALL, '"{s}",' + THREE + ",1,1,1"),
    ("_runtime,_step,_timestamp,train/loss,train/global_step", "{t},7,{s},1.5,{i}"),
    (f'"Step",{RUN.format("step_time")}', '"{i}",2.5,2.4,2.6'),
)
def test_what_wandb_exports_is_read(head, row, mean_of):
    assert mean_of(table(head, row)) == pytest.approx(2.5)


def test_an_export_of_wandb_without_a_time_or_of_several_runs_is_refused(read, mean_of):
    with pytest.raises(UsageError, match=r"export a chart over Relative Time \(Process\)"):
        read(table(f'"Step",{RUN.format("train/loss")}', '"{i}",1,1,1'))
    two = table('"Step","brisk-4 - step_time","lucky-3 - step_time"', '"{i}",1.0,2.0')
    with pytest.raises(UsageError, match="2 runs: brisk-4, lucky-3"):
        read(two)
    assert mean_of(two, time="lucky-3 - step_time") == pytest.approx(2.0)


def test_metrics_of_mlflow_stand_one_behind_the_other(read):
    """As its page exports them; an evaluation, logged later in the step, does not set the clock."""
    head = "run_id,key,value,step,timestamp"
    late = "".join(f"a1,eval_loss,1.5,{i},{1714557690000 + 2500 * i}\n" for i in range(0, 400, 100))
    text = f"{head}\n{late}" + table(head, "a1,loss,1.5,{i},{ms}").partition("\n")[2]
    log = read(text)
    assert (len(log.records), steps_of(log, None).mean_s) == (40, pytest.approx(2.5))
    with pytest.raises(UsageError, match="2 runs"):
        read(text + "".join(f"b2,loss,1.5,{i},{1714557600000 + 9 * i}\n" for i in range(9)))


@cases(
    "row",
    '"train_speed(iter/s)": 0.5, "global_step/max_steps": "{i}/5000", '
    '"elapsed_time": "{minutes}m {s}s"',
    '"current_steps": {i}, "elapsed_time": "0:{minutes:02}:{s:02}"',
    ids=["ms-swift", "LLaMA-Factory"],
)
def test_steps_and_elapsed_times_with_their_units(row, mean_of):
    rows = (row.format(i=10 * i, minutes=7 * i // 6, s=70 * i % 60) for i in range(1, 50))
    text = "".join(f'{{"loss": 1.2, {one}}}\n' for one in rows)
    assert mean_of(text, "log.jsonl") == pytest.approx(7.0, rel=0.01)


@cases("kind", "float_val", "double_val", "<f4", "<f8", "<i4")
def test_event_files_may_hold_tensors_in_any_order_of_steps(kind, tmp_path):
    """As TensorFlow 2 writes scalars; what is no scalar of floats is none."""
    pytest.importorskip("tensorboard", reason="pip install 'scalebench[tensorboard]'")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for i in (*range(20, 40), *range(20)):
        number = np.array([0.5 if i else 7.0]).astype(kind if kind[0] == "<" else "f8")
        types = {"float_val": 1, "double_val": 2, "<f4": 1, "<f8": 2, "<i4": 3}
        held = {kind: number} if kind[0] != "<" else {"tensor_content": number.tobytes()}
        pair = {"tensor_content": np.ones(2, "<f4").tobytes()}
        value = [
            Summary.Value(tag="step_time", tensor=TensorProto(dtype=types[kind], **held)),
            Summary.Value(tag="loss", tensor=TensorProto(dtype=1, **pair)),
        ]
        writer.add_event(Event(step=i, wall_time=1000 + 9 * i, summary=Summary(value=value)))
    writer.close()
    (path,) = tmp_path.iterdir()
    if kind == "<i4":
        with pytest.raises(UsageError, match="no column of times"):
            read_table(path, {})
        return
    log = read_table(path, {})
    assert list(log.records.column("time")) == [7.0, *[0.5] * 39]
    assert not log.records.loss


@cases("name", "own.jsonl", "own.json")
def test_rows_may_stand_within_and_hold_their_values_within(name, mean_of):
    rows = [{"step": i, "metrics": {"step_time": 0.5}} for i in range(9)]
    flat = [{"step": row["step"], "step_time": 0.5, "elapsed": {}} for row in rows]
    assert mean_of({"rows": flat, "other": 1} if name == "own.json" else rows, name) == 0.5


def test_a_table_that_begins_again_counts_from_there_on(read):
    rows = [f"{i},1.0\n" for i in range(40)] + [f"{i},2.0\n" for i in range(10, 40)]
    log = read("step,step_time\n" + "".join(rows))
    assert list(log.records.column("time")) == [2.0] * 30
    assert log.notices == ["the step number goes back to 10: only the part after it counts"]


@cases(
    "text, columns, mean_s",
    # other columns of several runs do not matter; one called so comes before that of a run
    ("step,dt,a - x,b - y\n1,0.5,3,3\n2,0.5,3,3\n3,0.5,3,3\n", {}, 0.5),
    ("step,a - step_time,step_time\n1,1,2\n2,1,2\n3,1,2\n", {"time": "step_time"}, 2.0),
    # Lightning's ThroughputMonitor: where the time is since the beginning, the speed counts
    (table("step,time,device/batches_per_sec", "{i},{t},2.0"), {}, 0.5),
    ("step,elapsed\n" + "".join(f"{i},{1.25 * i}s\n" for i in range(1, 40)), {}, 1.25),
)
def test_which_of_several_columns_counts(text, columns, mean_s, mean_of):
    assert mean_of(text, **columns) == pytest.approx(mean_s)


def test_a_total_that_contains_evaluations_loses_them(read):
    history = [
        *({"step": 10 * i, "loss": 2.0} for i in range(1, 10)),
        *({"step": 50 * i, "eval_runtime": 100.0} for i in range(1, 3)),
        {"step": 100, "train_runtime": 400.0, "train_samples_per_second": 2.0},
        {"step": 100, "eval_runtime": 50.0},  # after the training
    ]
    state = {"log_history": history, "logging_steps": 10, "global_step": 100}
    found = steps_of(read(state, "trainer_state.json"), None)
    assert (found.mean_s, found.pauses, found.source) == (2.0, (2, 200.0), "total")
    assert "no interval" in found.notices[0]


@cases("name", "train_runtime", "eval_runtime", "step")
def test_an_endless_total_is_refused(read, name):
    rows = ({"eval_runtime": 1}, {"step": 100, "train_runtime": 400.0})
    endless = [row | {name: float("inf")} if name in row else row for row in rows]
    with pytest.raises(UsageError, match=f"its {name} is inf"):
        read({"log_history": endless}, "trainer_state.json")


def test_the_results_of_transformers_tell_the_mean_of_all_steps(read):
    """What its trainer saves beside its state: train_results.json, or the history alone."""
    total = {"train_runtime": 400.0, "train_samples_per_second": 2.0}
    alone = {"epoch": 1.0, "train_loss": 2.0, **total, "train_steps_per_second": 0.25}
    with_evaluation = alone | {"eval_runtime": 350.0}  # all_results.json: after the training
    history = [{"step": 50, "loss": 2.0}, {"step": 100, **total}]
    for content in (alone, with_evaluation, history):
        job = job_of(read(content, "train_results.json"), Stated(gpus=8))
        assert (job.step_s, job.counts, job.samples_per_s) == ([4.0], [100.0], 2.0)


def test_a_job_that_stopped_early_did_fewer_steps_than_its_rates_say(read, write):
    """The rates of transformers are those of all steps that were planned, 280 here."""
    total = {"train_runtime": 50.0, "train_samples_per_second": 358.4}
    total |= {"train_steps_per_second": 5.6, "epoch": 4.0}
    state = {"log_history": [{"step": 50, "loss": 2.0}, total | {"step": 160}]}
    text = f"TrainOutput(global_step=160, training_loss=0.5, metrics={total})\n"
    for log in (read(state, "trainer_state.json"), read_log(write(text, "t.log"), formats())):
        job = job_of(log, Stated(gpus=8))
        assert (job.step_s, job.samples_per_s) == ([50 / 160], pytest.approx(64 * 160 / 50))


def test_a_resumed_job_or_predictions_in_it_are_told_beside_its_total(read):
    said = ({"step": 60, "loss": 2.0}, {"step": 70, "predict_runtime": 9.0})
    history = [*said, {"train_runtime": 400.0}]
    state = {"log_history": history, "logging_steps": 10, "global_step": 100}
    log = read(state, "trainer_state.json")
    assert steps_of(log, None).mean_s == 4.0
    assert [notice.split()[0] for notice in log.notices] == ["predictions", "its"]


@cases(
    "name, text, why",
    ("a.csv", "name,size\nx,1\n", "a.csv"),
    ("d.json", '[{"train_runtime": {}}]', "d.json"),
    ("b.json", "{", "b.json"),
    ("c.json", '{"a": 1}', "c.json"),
    # Composer's total, in hours or in what its user chose: the unit stands nowhere
    ("e.csv", "step,time/total\n1,0.1\n2,0.2\n3,0.3\n", "no column of times"),
)
def test_a_table_of_something_else_is_refused(name, text, why, read):
    with pytest.raises(UsageError, match=why):
        read(text, name)
