"""Logs that are tables: CSV, JSON lines, trainer_state.json."""

import json
from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.importing.job import Stated, job_of
from scalebench.importing.steps import steps_of
from scalebench.importing.tables import read_table


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def mean_of(path: Path, **columns: str) -> float:
    log = read_table(path, columns)
    assert log is not None
    return steps_of(log, None).mean_s


def test_columns_are_known_by_their_names_or_named(tmp_path: Path) -> None:
    rows = "".join(f"{i},{10 + 0.5 * i},{500},{2.5}\n" for i in range(20))
    lightning = write(tmp_path, "metrics.csv", "step,_timestamp,took_ms,train_loss\n" + rows)
    assert mean_of(lightning) == pytest.approx(0.5)
    assert mean_of(lightning, time="took_ms") == pytest.approx(0.5)
    with pytest.raises(UsageError, match=r"no column nothing.*took_ms"):
        mean_of(lightning, time="nothing")
    with pytest.raises(UsageError, match="value for --column"):
        mean_of(lightning, tim="took_ms")


def test_a_rate_alone_is_that_of_the_job(tmp_path: Path) -> None:
    path = write(tmp_path, "own.csv", "step,tokens_per_sec\n" + "1,4000\n2,4000\n3,4000\n")
    log = read_table(path, {})
    assert log is not None
    assert job_of(log, Stated(gpus=8)).tokens_per_s == pytest.approx(4000)


def table(head: str, row: str, steps: int = 40) -> str:
    rows = (row.format(i=i, s=1714557600 + 2.5 * i, t=2.5 * i, ms=1714557600000 + 2500 * i)
            for i in range(0, 10 * steps, 10))  # fmt: skip
    return "\n".join([head, *rows]) + "\n"


RUN = '"lucky-dust-3 - {0}","lucky-dust-3 - {0}__MIN","lucky-dust-3 - {0}__MAX"'
THREE = '"{i}","{i}","{i}"'


@pytest.mark.parametrize(
    ("head", "row"),
    [  # a chart of W&B over its process's time, over the clock; a history; a table of each step
        (f'"Relative Time (Process)",{RUN.format("_step")}', '"{t}",' + THREE),
        (
            f'"Wall Time",{RUN.format("_step")},{RUN.format("train/loss")}',
            '"{s}",' + THREE + ",1,1,1",
        ),
        ("_runtime,_step,_timestamp,train/loss,train/global_step", "{t},7,{s},1.5,{i}"),
        (f'"Step",{RUN.format("step_time")}', '"{i}",2.5,2.4,2.6'),
    ],
)
def test_what_wandb_exports_is_read(head: str, row: str, tmp_path: Path) -> None:
    assert mean_of(write(tmp_path, "wandb.csv", table(head, row))) == pytest.approx(2.5)


def test_an_export_of_wandb_without_a_time_or_of_several_runs_is_refused(tmp_path: Path) -> None:
    loss = write(tmp_path, "loss.csv", table(f'"Step",{RUN.format("train/loss")}', '"{i}",1,1,1'))
    with pytest.raises(UsageError, match=r"export a chart over Relative Time \(Process\)"):
        read_table(loss, {})
    head = '"Step","brisk-4 - step_time","lucky-3 - step_time"'
    two = write(tmp_path, "two.csv", table(head, '"{i}",1.0,2.0'))
    with pytest.raises(UsageError, match="2 runs: brisk-4, lucky-3"):
        read_table(two, {})
    assert mean_of(two, time="lucky-3 - step_time") == pytest.approx(2.0)


def test_metrics_of_mlflow_stand_one_behind_the_other(tmp_path: Path) -> None:
    """As its page exports them; an evaluation, logged later in the step, does not set the clock."""
    head = "run_id,key,value,step,timestamp"
    late = "".join(f"a1,eval_loss,1.5,{i},{1714557690000 + 2500 * i}\n" for i in range(0, 400, 100))
    text = f"{head}\n{late}" + table(head, "a1,loss,1.5,{i},{ms}").partition("\n")[2]
    path = write(tmp_path, "mlflow.csv", text)
    assert mean_of(path) == pytest.approx(2.5)
    other = "".join(f"b2,loss,1.5,{i},{1714557600000 + 9 * i}\n" for i in range(9))
    with pytest.raises(UsageError, match="2 runs"):
        read_table(write(tmp_path, "runs.csv", text + other), {})


@pytest.mark.parametrize(
    "row",
    [
        '"train_speed(iter/s)": 0.5, "global_step/max_steps": "{i}/5000", '
        '"elapsed_time": "{minutes}m {s}s"',
        '"current_steps": {i}, "elapsed_time": "0:{minutes:02}:{s:02}"',
    ],
    ids=["ms-swift", "LLaMA-Factory"],
)
def test_steps_and_elapsed_times_with_their_units(row: str, tmp_path: Path) -> None:
    rows = (row.format(i=10 * i, minutes=7 * i // 6, s=70 * i % 60) for i in range(1, 50))
    text = "".join(f'{{"loss": 1.2, {one}}}\n' for one in rows)
    assert mean_of(write(tmp_path, "log.jsonl", text)) == pytest.approx(7.0, rel=0.01)


@pytest.mark.parametrize("tag", ["perf/step_time", "loss"])
def test_event_files_as_their_own_library_writes_them(tag: str, tmp_path: Path) -> None:
    """A step of 0.5 s as printed, or by the time of each event."""
    pytest.importorskip("tensorboard", reason="pip install 'scalebench[tensorboard]'")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for i in range(40):
        told = Summary(value=[Summary.Value(tag=tag, simple_value=0.5)])
        writer.add_event(Event(step=i, wall_time=1000 + 0.5 * i, summary=told))
    writer.close()
    (path,) = tmp_path.iterdir()
    assert mean_of(path, **({"time": tag} if tag != "loss" else {})) == pytest.approx(0.5)


def test_a_total_that_contains_evaluations_loses_them(tmp_path: Path) -> None:
    history = [
        *({"step": 10 * i, "loss": 2.0} for i in range(1, 10)),
        *({"step": 50 * i, "eval_runtime": 100.0} for i in range(1, 3)),
        {"step": 100, "train_runtime": 400.0, "train_samples_per_second": 2.0},
    ]
    state = {"log_history": history, "logging_steps": 10, "global_step": 100}
    path = write(tmp_path, "trainer_state.json", json.dumps(state))
    log = read_table(path, {})
    assert log is not None
    found = steps_of(log, None)
    assert (found.mean_s, found.pauses, found.source) == (2.0, (2, 200.0), "total")
    assert "no interval" in found.notices[0]


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    for name, text in (("a.csv", "name,size\nx,1\n"), ("b.json", "{"), ("c.json", '{"a": 1}')):
        with pytest.raises(UsageError, match=name):
            read_table(write(tmp_path, name, text), {})
