"""Trackers of experiments: a run in TensorBoard, Weights & Biases or MLflow.

Every number of a row is a curve of its case over the number of ranks: ``efficiency/ddp/ddp-bucket``
at step N, with ``…/low`` and ``…/high`` for its interval; ``budget/…`` has the parts of the loss
budget, plain ratios of the step. The libraries write; secrets are read by them alone, from their
environment variables.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from scalebench.analysis.run import StoredRun, load_run
from scalebench.errors import EnvironmentUnfit, unknown_name
from scalebench.records.summary import Row, Summary
from scalebench.report import markdown
from scalebench.report.export.measures import nothing_for, numbers, split
from scalebench.report.words.terms import plain

Tracker = Callable[[StoredRun, Summary, Path], None]


def points(row: Row) -> Iterator[tuple[str, float]]:
    """Yield name and value of every number of a row."""
    case = f"{plain(row.suite, 64)}/{plain(row.case, 64)}"
    for measure, number in numbers(row):
        ends = {"low": number.low, "high": number.high}
        yield f"{measure.field}/{case}", number.value
        yield from ((f"{measure.field}/{case}/{e}", v) for e, v in ends.items() if v is not None)
    for part, lost in (row.budget.points if row.budget else {}).items():
        if lost is not None:
            yield f"budget/{part}/{case}", lost


def _good(summary: Summary, reader: str) -> list[Row]:
    rows = split(summary.rows)[0]
    if not rows:
        raise nothing_for(reader, summary)
    return sorted(rows, key=lambda row: row.world_size)


def missing(library: str) -> EnvironmentUnfit:
    """Return the error of a tracker whose library is not installed."""
    return EnvironmentUnfit(f"{library} is not installed: pip install 'scalebench[{library}]'.")


def log_to_tensorboard(run: StoredRun, summary: Summary, out: Path) -> None:
    """Write event files to a folder, for ``tensorboard --logdir``.

    Raises:
        EnvironmentUnfit: TensorBoard is not installed.
        ScalebenchError: No row succeeded.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise missing("tensorboard") from error
    rows = _good(summary, "TensorBoard")
    writer = EventFileWriter(str(out))
    writer.add_event(Event(step=0, summary=text_pb("run", markdown.render_markdown(summary))))
    for row in rows:
        for name, value in points(row):
            writer.add_event(Event(step=row.world_size, summary=scalar_pb(name, value)))
    writer.close()


def log_to_wandb(run: StoredRun, summary: Summary, out: Path) -> None:
    """Log to Weights & Biases: with ``WANDB_API_KEY`` to its server, else to a folder, offline.

    ``WANDB_PROJECT``, ``WANDB_ENTITY`` and ``WANDB_MODE`` hold as ever. Nothing of this machine is
    stored besides what the run's summary has.

    Raises:
        EnvironmentUnfit: wandb is not installed, or refuses.
        ScalebenchError: No row succeeded.
    """
    try:
        import wandb
    except ImportError as error:
        raise missing("wandb") from error
    rows = _good(summary, "Weights & Biases")
    offline = None if os.environ.get("WANDB_API_KEY") else "offline"
    out.mkdir(parents=True, exist_ok=True)
    silent = {name: True for name in ("silent", "disable_git", "disable_code", "x_disable_meta")}
    quiet = wandb.Settings(console="off", x_disable_stats=True, x_save_requirements=False, **silent)
    try:
        logged = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "scalebench"),
            name=plain(summary.run_id, 120),
            mode=os.environ.get("WANDB_MODE", offline),
            dir=str(out),
            config={"environment": summary.environment, "reproduce": summary.reproduce},
            settings=quiet,
        )
        logged.define_metric("*", step_metric="num_ranks")
        for size in dict.fromkeys(row.world_size for row in rows):
            found = dict(p for row in rows if row.world_size == size for p in points(row))
            logged.log({"num_ranks": size, **found})
        from scalebench.report.export.frames import run_frame

        frame = run_frame(summary)
        known = frame.astype(object).where(frame.notna(), None)
        logged.log({"rows": wandb.Table(columns=list(frame.columns), data=known.values.tolist())})
        files = wandb.Artifact(f"run-{plain(summary.run_id, 100)}", type="scalebench-run")
        for path in (run.paths.summary_json, run.paths.report_html):
            if path.is_file():
                files.add_file(str(path))
        logged.log_artifact(files)
        logged.finish()
    except wandb.Error as error:
        raise EnvironmentUnfit(f"Weights & Biases refused the run: {plain(error, 300)}.") from error


def log_to_mlflow(run: StoredRun, summary: Summary, out: Path) -> None:
    """Log to the MLflow server of ``MLFLOW_TRACKING_URI``, else to a folder with a SQLite store.

    ``MLFLOW_EXPERIMENT_NAME`` and MLflow's own secrets hold as ever; its telemetry is off.

    Raises:
        EnvironmentUnfit: mlflow is not installed, or refuses.
        ScalebenchError: No row succeeded.
    """
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    try:
        import sqlalchemy as _needed_by_the_store  # noqa: F401
        from mlflow import MlflowClient
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise missing("mlflow") from error
    rows = _good(summary, "MLflow")
    out.mkdir(parents=True, exist_ok=True)
    store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{out.resolve() / 'mlflow.db'}")
    wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", "scalebench")
    now = int(time.time() * 1000)
    metrics = [
        Metric(re.sub(r"[^\w./ -]", "_", name), value, now, row.world_size)
        for row in rows
        for name, value in points(row)
    ]
    try:
        client = MlflowClient(store)
        own = None if "MLFLOW_TRACKING_URI" in os.environ else (out.resolve() / "files").as_uri()
        found = client.get_experiment_by_name(wanted)
        experiment = found.experiment_id if found else client.create_experiment(wanted, own)
        logged = client.create_run(experiment, run_name=plain(summary.run_id, 120)).info.run_id
        client.log_param(logged, "reproduce", plain(summary.reproduce, 500))
        for first in range(0, len(metrics), 1000):  # the most that a call takes
            client.log_batch(logged, metrics=metrics[first : first + 1000])
        client.log_dict(logged, summary.environment, "environment.json")
        client.log_text(logged, markdown.render_markdown(summary), "summary.md")
        for path in (run.paths.summary_json, run.paths.report_html):
            if path.is_file():
                client.log_artifact(logged, str(path))
        client.set_terminated(logged)
    except (MlflowException, OSError) as error:
        raise EnvironmentUnfit(f"MLflow refused the run: {plain(error, 300)}.") from error


TRACKERS: dict[str, Tracker] = {
    "tensorboard": log_to_tensorboard,
    "wandb": log_to_wandb,
    "mlflow": log_to_mlflow,
}
"""What ``export --format`` and ``run --log-to`` take: each writes into a folder."""


def check_trackers(names: Sequence[str]) -> None:
    """Look before a run whether it can be logged.

    Raises:
        UsageError: There is no such tracker.
        EnvironmentUnfit: Its library is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise missing(name)


def log_to(name: str, root: Path, summary: Summary) -> Path:
    """Log a run, in a folder of its folder that is named like the tracker; return that."""
    folder = root / name
    TRACKERS[name](load_run(root), summary, folder)
    return folder
