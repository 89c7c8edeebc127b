import io
import json
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import junitparser
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from scalebench.analysis.summarise import summarise
from scalebench.cli import cli
from scalebench.errors import ScalebenchError, UsageError
from scalebench.records.measured.trace import ClockAlignment, TracedAction
from scalebench.report.export import FORMATS
from scalebench.report.export.measures import UNITS, family_name, numbers, row_name
from tests.builders import runs
from tests.builders.repository.documents import ROOT, commands
from tests.builders.summaries import (
    HOSTILE,
    attributed,
    hostile_summary,
    make_missing,
    make_row,
    make_summary,
    remembered_rows,
    usual_rows,
)
from tests.builders.tracing import traced
from tests.examples import cases

JUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {
            *("name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp"),
            *("hostname", "id", "package", "file", "log", "url"),
        },
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}
"""Element → attributes and children that Jenkins' junit-10.xsd allows."""


def assert_of_the_schema(element):
    """Fail where an element has what the schema does not allow."""
    attributes, children = JUNIT[element.tag]
    assert set(element.attrib) <= attributes, element.tag
    assert {child.tag for child in element} <= children, element.tag
    for child in element:
        assert_of_the_schema(child)


EMPTY = runs.make_run([])
SUMMARY = make_summary([*usual_rows(), attributed(make_row("traced", 2, efficiency=0.85))])
LAB = make_row("ddp-lab", 2, virtual_hosts=True, link="50mbit", cpus_per_rank=0.2, stamps=["paced"])


def exported(name, summary=SUMMARY, run=EMPTY):
    return FORMATS[name].export(run, summary)


def test_names_tell_conditions_apart():
    lab = {"virtual_hosts": True, "link": "50mbit"}
    conditions = (
        *({}, {"scaling": "weak"}, {"device": "cuda"}, {"workload": "mlp"}, {"pinned": False}),
        *({"oversubscribed": True}, lab, lab | {"cpus_per_rank": 0.2}),
        *({"stamps": [stamp]} for stamp in ("paced", "simulated")),
    )
    rows = [make_row("a", 4), make_row("b", 2), *(make_row("a", 2, **one) for one in conditions)]
    assert len({row_name(row) for row in rows}) == len(rows) == 12
    assert row_name(LAB) == (
        "ddp/ddp-lab N=2 [gpt-mini, strong, cpu, virtual hosts 50mbit, 0.2 CPU per rank, paced]"
    )


@cases("name", *[n for n in FORMATS if n not in ("parquet", "chrome-trace")])
def test_caveats_are_told_in_every_format(name):
    summary = make_summary([LAB, make_row("over", 4, oversubscribed=True)])
    text = exported(name, summary)
    if name == "csv":
        table = pd.read_csv(io.StringIO(text))
        assert table["virtual_hosts"].tolist() == [True, False]
        assert table["oversubscribed"].tolist() == [False, True]
        assert table["stamps"][0] == "paced"
    else:
        assert "virtual hosts 50mbit, 0.2 CPU per rank" in text
        assert "paced" in text
        assert "oversubscribed" in text


@cases("name", *[n for n in FORMATS if n != "chrome-trace"])
def test_an_empty_run_is_never_a_good_one(name):
    nothing = make_summary([make_missing("ddp", 2, "failed", "rank 1: it broke")])
    if FORMATS[name].only_good:
        with pytest.raises(ScalebenchError, match=r"No row of .* succeeded"):
            exported(name, nothing)
    else:
        assert "it broke" in str(exported(name, nothing))


@cases("name", *[n for n in FORMATS if n not in ("parquet", "chrome-trace")])
def test_the_numbers_of_a_row_that_failed_are_in_no_series(name):
    """Such a row may have numbers, of the launches that went well."""
    failed = make_row("half", 2, status="failed", reason="rank 1: it broke in launch 2")
    text = exported(name, make_summary([make_row("fine", 2), failed]))
    if name.startswith("github") or name == "bencher":
        assert "half" not in text
    elif name == "pytest-benchmark":
        assert [b["name"] for b in json.loads(text)["benchmarks"]] == ["fine[n2]"]
    elif name == "openmetrics":
        assert {s.labels["case"] for s in families(text)["scalebench_step_seconds"].samples} == {
            "fine"
        }
    else:
        assert "it broke in launch 2" in text


def test_hostile_texts_leave_every_json_whole():
    hostile = hostile_summary()
    for name in ("pytest-benchmark", "github-action-benchmark-smaller", "bencher"):
        content = json.loads(exported(name, hostile))
        found = content if name != "pytest-benchmark" else content["benchmarks"]
        names = [entry if isinstance(entry, str) else entry["name"] for entry in found]
        assert len(set(names)) == len(names) >= 2 * len(HOSTILE)
        assert not any(character in text for text in names for character in "\x1b\u202e\n")


def test_pytest_benchmark_compares_two_exports(tmp_path):
    files = []
    for name, factor in (("before", 1.0), ("after", 1.2)):
        rows = [make_row("ddp", n, base_step_s=0.036 * factor) for n in (1, 2)]
        path = tmp_path / f"{name}.json"
        path.write_text(exported("pytest-benchmark", make_summary(rows)))
        files.append(str(path))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest_benchmark", "compare", *files),
            *("--group-by=name", "--columns=median,rounds", "--csv", str(tmp_path / "table")),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "table.csv")
    medians = table[table["name"].str.contains(r"ddp\[n2\]")]["median"].tolist()
    assert len(medians) == 2
    assert max(medians) / min(medians) == pytest.approx(1.2, rel=1e-6)


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_prometheus_parses_every_number():
    found = families(exported("openmetrics"))
    for row in SUMMARY.rows:
        if row.status != "ok":
            continue
        for measure, number in numbers(row):
            for bound, value in (
                ("", number.value),
                ("_lower", number.low),
                ("_upper", number.high),
            ):
                if value is None:
                    continue
                name = family_name(measure, bound)
                assert found[name].unit == UNITS[measure.unit]
                assert found[name].type == "gauge"
                (sample,) = (
                    s
                    for s in found[name].samples
                    if (s.labels["case"], s.labels["world_size"]) == (row.case, str(row.world_size))
                )
                assert sample.value == value


RUNS = {"rows": SUMMARY, "texts": hostile_summary(), "none": make_summary([])}


@cases("name", *RUNS)
def test_promtool_finds_nothing_to_object_to(name):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = exported("openmetrics", RUNS[name])
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@given(st.text())
def test_any_text_is_one_label(text):
    row = make_row("ddp", 2, workload=text, unavailable={"mfu": text})
    found = families(exported("openmetrics", make_summary([row])))
    (sample,) = found["scalebench_step_seconds"].samples
    assert sample.labels["case"] == "ddp"


def test_junit_says_what_became_of_every_row():
    text = exported("junit")
    (suite,) = junitparser.JUnitXml.fromstring(text.encode())
    assert (suite.tests, suite.failures, suite.skipped) == (10, 1, 2)
    cases = {case.name: case for case in suite}
    out_of_memory = cases["ddp-1mb N=4 [gpt-mini, strong, cpu]"].result[0]
    assert isinstance(out_of_memory, junitparser.Failure)
    assert "rank 3: out of memory" in out_of_memory.message
    skipped = cases["ddp-25mb N=8 [gpt-mini, strong, cpu]"].result[0]
    assert isinstance(skipped, junitparser.Skipped)
    assert skipped.message == "8 ranks asked for, 2 cores here"
    shown = cases["ddp-25mb N=2 [gpt-mini, strong, cpu]"].system_out
    assert "efficiency: 0.856 ratio [0.82176, 0.89024], 3 launches" in shown
    assert "exposed_comm_s: null: not measured by this version" in shown


@cases("summary", SUMMARY, hostile_summary(), ids=["usual", "hostile"])
def test_junit_holds_to_the_schema(summary):
    root = ElementTree.fromstring(exported("junit", summary))
    assert_of_the_schema(root)
    assert len(list(root.iter("testcase"))) == len(summary.rows)


@given(st.text())
def test_any_reason_is_legal_xml(text):
    row = make_missing("ddp", 2, "failed", text)
    suite = next(iter(junitparser.JUnitXml.fromstring(exported("junit", make_summary([row])))))
    assert suite.failures == 1


def test_pandas_reads_the_parquet_back_with_its_types():
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    summary = make_summary([*usual_rows(), *remembered_rows()])
    content = exported("parquet", summary)
    table = pd.read_parquet(io.BytesIO(content))
    assert len(table) == len(summary.rows)
    assert pd.api.types.is_integer_dtype(table["world_size"])
    assert pd.api.types.is_float_dtype(table["step_s"])
    assert table["step_s"].isna().sum() == 3
    assert table["efficiency"].dropna().tolist() == [
        row.efficiency.value for row in summary.rows if row.efficiency
    ]
    metadata = parquet.read_schema(io.BytesIO(content)).metadata
    assert metadata[b"scalebench.format"] == b"scalebench.summary/1"
    assert metadata[b"scalebench.run_id"].decode() == summary.run_id


def traced_run():
    """Two ranks; the second's clock is 3 ms behind, and it has two operations at once."""
    behind = ClockAlignment(method="ping-pong", at_ns=0, offset_ns=-3_000_000, bound_ns=10)
    first = traced.make_trace(
        [traced.make_operation(60, 90)], compute=[(0, 50), (50, 60)], origin=1000
    )
    second = traced.make_trace(
        [traced.make_operation(60, 90), traced.make_operation(70, 95, ordinal=1)],
        compute=[(0, 55)],
        origin=997,
        actions=[TracedAction(kind="F", stage=0, microbatch=1, step=0, start_ns=5, end_ns=1005)],
        copies=[55_000_000, 57_000_000],
    )
    result = traced.make_traced_result(
        traced.make_traced_record(0, first), traced.make_traced_record(1, second, clock=behind)
    )
    return runs.make_run([result])


def test_chrome_trace_puts_ranks_on_one_clock():
    run = traced_run()
    events = json.loads(exported("chrome-trace", summarise(run), run))["traceEvents"]
    steps = [e for e in events if e.get("cat") == "step"]
    assert [(e["ts"], e["dur"]) for e in steps] == [(0.0, 100_000.0)] * 2
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[pid].rpartition("launch")[2] for pid in sorted(names)] == [
        " 0 rank 0",
        " 0 rank 1",
    ]
    (action,) = (e for e in events if e.get("cat") == "pipeline")
    assert (action["name"], action["ts"], action["dur"]) == ("F1 stage 0", 0.005, 1.0)
    copies = [(e["ts"], e["dur"]) for e in events if e.get("name") == "copies"]
    assert copies == [(55_000.0, 2000.0)]
    sent = [e for e in events if e.get("cat") == "communication"]
    assert [e["args"]["num_bytes"] for e in sent] == [1000] * 3


def test_a_run_without_traces_says_why_there_is_nothing():
    run = runs.make_run(runs.make_small_run())
    summary = summarise(run)
    with pytest.raises(UsageError, match="no reason is recorded"):
        exported("chrome-trace", summary, run)
    summary.reproduce += " --no-trace"
    with pytest.raises(UsageError, match="--no-trace left them out"):
        exported("chrome-trace", summary, run)


def test_export_refuses_in_one_line(in_process, tmp_path):
    run = str(runs.make_stored_run(tmp_path / "run", [*runs.make_small_run()]).root)
    for arguments, word in (
        (["--format", "parquet"], "--out FILE.parquet"),
        (["--format", "github-action-benchmark"], "two files"),
        (["--format", "chrome-trace"], "no traced steps"),
        (["--format", "csv", "--out", "."], "is a directory"),
    ):
        refused = in_process("export", run, *arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert word in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


def test_the_examples_of_exports(tmp_path, monkeypatch):
    trace = traced.make_trace([traced.make_operation(60, 90)], compute=[(0, 50)])
    records = [traced.make_traced_record(rank, trace) for rank in range(2)]
    results = [runs.make_inspection(runs.make_cell()), traced.make_traced_result(*records)]
    runs.make_stored_run(tmp_path / "reports" / "latest", results)
    monkeypatch.chdir(tmp_path)
    calls = commands("docs/export.md")
    written = []
    for arguments in calls:
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        written += done.stdout.split()
    assert len(calls) == 8 and len(written) == 9
    assert all((tmp_path / name).stat().st_size > 100 for name in written)


def test_the_name_of_a_row_is_the_documented_one():
    row = make_row("ddp-bucket-1mb", 2, workload="gpt-tiny")
    assert f"`{row_name(row)}`" in (ROOT / "docs" / "export.md").read_text()
