"""Runs of version 0.1 load, show, report, export and gate as they did: tests/golden/summaries-0.1.

JSON and CSV may gain fields; none is lost, and no value changes. Reasons are sentences: those that
were reworded since are in `REWORDED`, and are compared with their new wording.
"""

import base64
import csv
import gzip
import io
import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.gate.baselines import read_summary
from scalebench.records.run import LargestBatch, from_notices
from scalebench.report import render_page, render_table
from tests.builders.runs import make_cell

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/summaries-0.1"
RUNS = ["ddp-2-cores", "ddp-8-virtual-hosts"]
"""Whose folders are in the gallery."""
SUITES = "core-suites"
"""Pipelines, compression and FSDP: a summary alone."""
REWORDED = {
    "the plain model communicates with nobody": "the plain model does not communicate",
    "no operator of the model is known to torch's counter": (
        "torch's FLOP counter knows no operator of the model"
    ),
    "the interval reaches across the floor": "the interval crosses the floor",
    "1 launch a side: nothing tells how much launches differ; --repeats 5 does": (
        "1 launch a side: too few to show how much launches differ; use --repeats 5"
    ),
}
"""What version 0.1 said → what is said now. Nothing but reasons for people belongs here."""
REDEFINED = {"probe_effect"}
"""Fields whose definition changed since, so that a stored run gives another value."""
EMBEDDED = re.compile(r'"data:application/gzip;base64,([^"]+)"')


@pytest.fixture(params=[*RUNS, SUITES])
def summary(request, tmp_path):
    """A summary of version 0.1: the run's name and the file."""
    path = tmp_path / "summary.json"
    path.write_text(golden(f"{request.param}.show.json"))
    return request.param, path


def golden(name):
    return gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()).decode()


def reworded(text):
    """A reason of version 0.1 in today's words; any other text as it is."""
    for old, new in REWORDED.items():
        if text.startswith(old):
            return new + text.removeprefix(old)
    return text


def lost(old, new, where="summary"):
    """What is not in the new JSON as it was in the old one."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{where}.{name} is gone" for name in old if name not in new]
        kept = [k for k in old if k in new and not k.startswith(tuple(REDEFINED))]
        return gone + [x for k in kept for x in lost(old[k], new[k], f"{where}.{k}")]
    if where.endswith("stamps"):  # what is stamped follows from the fields
        old, new = ([x for x in side if not x.startswith("probe effect")] for side in (old, new))
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [x for i, (a, b) in pairs for x in lost(a, b, f"{where}[{i}]")]
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
    same = math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-15) if numbers else old == new
    if isinstance(old, str):
        same = new in (old, reworded(old))
    return [] if same else [f"{where}: {old!r:.80} became {new!r:.80}"]


def cells_of(text):
    """A CSV file as rows, nested values read as JSON."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [
        {name: _value(cell) for name, cell in row.items()} | {"stamps": row["stamps"].split(";")}
        for row in rows
    ]


def _value(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def test_an_old_summary_loads_whole(summary):
    name, path = summary
    texts = [path.read_text()]
    if name in RUNS:
        texts.append((ROOT / f"reports/gallery/{name}/summary.json").read_text())
    for text in texts:
        path.write_text(text)
        assert not lost(json.loads(text), json.loads(read_summary(path).model_dump_json()))


def test_an_old_summary_alone_has_the_same_table(summary):
    name, path = summary
    old = read_summary(path)
    brief, whole = (render_table(old, 100, verbose=verbose) for verbose in (False, True))
    if name == SUITES:
        assert brief == (GOLDEN / f"{name}.show.txt").read_text()
        assert whole == (GOLDEN / f"{name}.show-verbose.txt").read_text()
    assert "verdict on suite" in brief and "where the lost time goes" in whole


def test_the_page_renders_and_holds_the_same_rows(summary):
    name, path = summary
    rows = json.loads(path.read_text())["rows"]
    found = EMBEDDED.findall(render_page([read_summary(path)]))
    table, whole = (gzip.decompress(base64.b64decode(packed)).decode() for packed in found)
    assert not lost(rows, json.loads(whole)["rows"])
    if name in RUNS:
        assert not lost(cells_of(golden(f"{name}.csv")), cells_of(table))


def test_an_old_summary_gates_against_itself_as_before(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("summary.json").write_text(golden(f"{SUITES}.show.json"))
    command = ["gate", "--json", "--baseline", "summary.json", "summary.json"]
    told = json.loads(CliRunner().invoke(cli, command).stdout)
    assert not lost(json.loads(golden(f"{SUITES}.gate.json")), told, "gate")


NOTICE = "ddp, N = 2: 48 samples per rank fit, 51 do not"


def test_an_old_notice_is_read_where_its_suite_is_known():
    batch = LargestBatch(suite="a", case="ddp", world_size=2, fits=48, too_large=51)
    assert batch.notice() == NOTICE
    assert from_notices(["CPU ranks over gloo", NOTICE], [make_cell(suite="a")] * 2) == [batch]
