"""What a tracker gets, read back by its own reader, and the notebook in a real kernel.

The libraries live in the environment of ``make frameworks-env``. Without it these tests are
skipped, unless ``SCALEBENCH_FRAMEWORK_TESTS=required`` says that they may not.
"""

import json
import os

import pytest

from tests.builders.repository.frameworks import PYTHON, ROOT, need
from tests.conftest import ran
from tests.examples import cases

RUN = ROOT / "reports" / "gallery" / "ddp-2-cores"
KEY = "0123456789abcdef" * 3

SCALARS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
found = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0}).Reload()
read = {
    tag: [[event.step, float(make_ndarray(event.tensor_proto))] for event in found.Tensors(tag)]
    for tag in found.Tags()["tensors"] if tag != "run"
}
print(json.dumps(read))
"""

RECORDS = """
import json, pathlib, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
(path,) = pathlib.Path(sys.argv[1]).rglob("*.wandb")
content, place, parts, found = path.read_bytes(), 7, b"", []
while place + 7 <= len(content):  # the log format of LevelDB, after a head of seven bytes
    _, size, kind = struct.unpack("<IHB", content[place : place + 7])
    parts += content[place + 7 : place + 7 + size]
    if kind in (1, 4):
        found.append(Record.FromString(parts))
        parts = b""
    place += 7 + size
    left = 32768 - place % 32768
    place += left if left < 7 else 0
steps = [
    {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in one.history.item}
    for one in found if one.WhichOneof("record_type") == "history"
]
kinds = [one.WhichOneof("record_type") for one in found]
requests = [one.request.WhichOneof("request_type") for one in found if one.HasField("request")]
print(json.dumps({"steps": steps, "kinds": kinds, "requests": requests}))
"""

MLFLOW = """
import json, sys
from mlflow import MlflowClient
for store in sys.argv[1:]:
    client = MlflowClient(store)
    (experiment,) = [e for e in client.search_experiments() if e.name == "scalebench"]
    (run,) = client.search_runs([experiment.experiment_id])
    names = [name for name in run.data.metrics if name.count("/") == 2]
    curves = {n: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, n)]
              for n in names if n.startswith("efficiency/")}
    files = [one.path for one in client.list_artifacts(run.info.run_id)]
    print(json.dumps({"curves": curves, "names": list(run.data.metrics), "files": files,
                      "params": run.data.params}))
"""

SCALARS_OF_A_JOB = """
import sys
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("logged") as writer:
    for i in range(40):
        writer.add_scalar(sys.argv[1], 0.5, i, walltime=1000 + 0.5 * i)
"""

NOTEBOOK = """
import json, sys, nbclient, nbformat
book = nbformat.read("notebook.ipynb", 4)
nbclient.NotebookClient(book, timeout=500).execute()
cells = [cell for cell in book.cells if cell.cell_type == "code"]
print(json.dumps([[one.get("data", {}) for one in cell.outputs] for cell in cells]))
"""


def done_there(*words, cwd, **variables):
    own = ("WANDB_", "MLFLOW_", "SCALEBENCH_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    kept |= {"PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(cwd / "data"), **variables}
    done = ran([PYTHON, *words], cwd=cwd, env=kept, code=0)
    return done.stdout


def measured(field):
    """Return name of a curve → N and value, of the committed ``summary.json``."""
    curves = {}
    for row in json.loads((RUN / "summary.json").read_text())["rows"]:
        if row[field] is not None:
            point = [row["world_size"], row[field]["value"]]
            curves.setdefault(f"{field}/{row['suite']}/{row['case']}", []).append(point)
    return curves


def test_tensorboards_reader_finds_every_row_at_its_number_of_ranks(tmp_path):
    need(PYTHON, "tensorboard")
    export = ("export", RUN, "--format", "tensorboard", "--out", "events")
    done_there("-m", "scalebench", *export, cwd=tmp_path)
    read = json.loads(done_there("-c", SCALARS, "events", cwd=tmp_path))
    for name, points in (measured("efficiency") | measured("step_s")).items():
        assert [n for n, _ in read[name]] == [n for n, _ in points]
        for (_, told), (_, value) in zip(read[name], points, strict=True):
            assert told == pytest.approx(value, rel=0.02)  # the run is analysed again
    assert read["efficiency/ddp/ddp/low"][1][1] < read["efficiency/ddp/ddp"][1][1]
    assert any(name.startswith("budget/wait/") for name in read)


@cases("tag", "perf/step_time", "loss")
def test_what_torch_writes_for_tensorboard_is_read_as_a_log(tmp_path, tag):
    """A step of 0.5 s as printed, or by the time of each event."""
    need(PYTHON, "tensorboard")
    done_there("-c", SCALARS_OF_A_JOB, tag, cwd=tmp_path)
    (path,) = (tmp_path / "logged").iterdir()
    time = ("--column", f"time={tag}") if tag != "loss" else ()
    words = ("import", f"{path}:gpus=2", *time, "--no-report", "--out", "run")
    done_there("-m", "scalebench", *words, cwd=tmp_path)
    (row,) = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
    assert row["step_s"]["value"] == pytest.approx(0.5)


def test_event_files_of_other_writers_are_read(tmp_path):
    """The unit tests that need TensorBoard's library, where it is."""
    need(PYTHON, "tensorboard", "pytest")
    where = ROOT / "tests" / "unit" / "importing" / "test_tables.py"
    alone = ("-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider", "-k", "event_files")
    told = done_there("-m", "pytest", "-q", *alone, where, cwd=tmp_path)
    assert "5 passed" in told and "skipped" not in told


def test_the_offline_run_of_wandb_holds_rows_numbers_and_page_and_no_secret(tmp_path):
    need(PYTHON, "wandb")
    export = ("export", RUN, "--format", "wandb", "--out", "logged")
    secret = {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}
    done_there("-m", "scalebench", *export, cwd=tmp_path, **secret)
    read = json.loads(done_there("-c", RECORDS, "logged", cwd=tmp_path))
    for name, points in measured("efficiency").items():
        told = [[s["num_ranks"], s[name]] for s in read["steps"] if name in s]
        assert [n for n, _ in told] == [n for n, _ in points]
        assert [v for _, v in told] == pytest.approx([v for _, v in points], rel=0.02)
    assert "artifact" in read["kinds"] or "log_artifact" in read["requests"]
    assert any(key.startswith("rows") for step in read["steps"] for key in step)
    files = [path for path in (tmp_path / "logged").rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)


def test_mlflow_holds_every_row_its_interval_and_the_page(tmp_path):
    need(PYTHON, "mlflow", "sqlalchemy")
    export = ("-m", "scalebench", "export", RUN, "--format", "mlflow", "--out")
    told = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    done_there(*export, "logged", cwd=tmp_path, **told)
    stores = ("sqlite:///logged/mlflow.db", "sqlite:///another.db")
    done_there(*export, "other", cwd=tmp_path, **told, MLFLOW_TRACKING_URI=stores[1])
    for line in done_there("-c", MLFLOW, *stores, cwd=tmp_path, **told).splitlines():
        read = json.loads(line)
        for name, points in measured("efficiency").items():
            assert [n for n, _ in read["curves"][name]] == [n for n, _ in points]
            values = [v for _, v in read["curves"][name]]
            assert values == pytest.approx([v for _, v in points], rel=0.02)
        assert "efficiency/ddp/ddp/low" in read["names"]
        assert any(name.startswith("budget/wait/") for name in read["names"])
        assert {"summary.json", "report.html", "summary.md"} <= set(read["files"])
        assert read["params"]["reproduce"].startswith("scalebench run")


def test_a_run_is_logged_where_it_is_stored(tmp_path):
    need(PYTHON, "tensorboard")
    short = ("--gpus", "1", "-k", "plain", "--quick", "--steps", "2", "--workload", "mlp-tiny")
    words = ("run", "ddp", *short, "--no-report", "--out", "r", "--log-to", "tensorboard")
    done_there("-m", "scalebench", *words, cwd=tmp_path)
    read = json.loads(done_there("-c", SCALARS, "r/tensorboard", cwd=tmp_path))
    (row,) = json.loads((tmp_path / "r" / "summary.json").read_text())["rows"]
    assert read["step_s/ddp/plain"] == [[1, pytest.approx(row["step_s"]["value"], rel=1e-6)]]


def test_a_kernel_runs_the_notebook_and_every_cell_shows_something(tmp_path):
    need(PYTHON, "nbclient", "ipykernel")
    where = {"XDG_DATA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    shown = json.loads(done_there("-c", NOTEBOOK, cwd=ROOT / "docs", **where))
    assert len(shown) >= 5
    for cell in shown:
        assert any("ddp" in str(output) for output in cell), cell
    kinds = {kind for cell in shown for output in cell for kind in output}
    assert {"text/html", "application/vnd.plotly.v1+json"} <= kinds
