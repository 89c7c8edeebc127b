"""Every format is read back by the tool it is for, or held against that tool's schema."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import jsonschema
import junitparser
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from scalebench.analysis.summarise import summarise
from scalebench.cli import main
from scalebench.costmodel.links.profile import profile_of
from scalebench.errors import ScalebenchError, UsageError
from scalebench.records.summary import Row, TimedCollectives
from scalebench.records.trace import ClockAlignment, TracedAction
from scalebench.report.export import FORMATS
from scalebench.report.export.chrome_trace import lanes, one_of_each_row
from scalebench.report.export.measures import MEASURES, numbers, row_name
from scalebench.report.export.openmetrics import UNITS, family_name
from tests.builders.calibrated import ALPHA_S, BANDWIDTH, line
from tests.builders.junit_schema import assert_of_the_schema
from tests.builders.recoveries import recovery
from tests.builders.runs import make_cell, make_result, make_run, make_small_run, make_stored_run
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
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result

EMPTY = make_run([])
SUMMARY = make_summary([*usual_rows(), attributed(make_row("traced", 2, efficiency=0.85))])
LAB = make_row("ddp-lab", 2, virtual_hosts=True, link="50mbit", cpus_per_rank=0.2, stamps=["paced"])

BMF = {
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "lower_value": {"type": "number"},
                        "upper_value": {"type": "number"},
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
"""What https://bencher.dev/docs/reference/bencher-metric-format asks for."""


def exported(name, summary=SUMMARY, run=EMPTY):
    return FORMATS[name].export(run, summary)


def row_at(case, world_size, summary=SUMMARY):
    return next(r for r in summary.rows if (r.case, r.world_size) == (case, world_size))


# What all formats have in common


def test_every_number_of_a_row_has_a_direction_and_a_unit():
    fields = {measure.field for measure in MEASURES}
    assert fields <= set(Row.model_fields)
    assert {"step_s", "efficiency", "peak_memory_bytes"} <= fields
    assert {measure.unit for measure in MEASURES} == set(UNITS)
    better = {measure.field: measure.better for measure in MEASURES}
    assert (better["step_s"], better["efficiency"]) == ("smaller", "bigger")
    assert (better["mfu"], better["bubble_ratio"]) == ("bigger", "smaller")
    assert better["prediction_error"] is None


def test_names_tell_conditions_apart():
    other = [
        make_row("a", 2),
        make_row("a", 4),
        make_row("b", 2),
        make_row("a", 2, scaling="weak"),
        make_row("a", 2, device="cuda"),
        make_row("a", 2, workload="mlp"),
        make_row("a", 2, oversubscribed=True),
        make_row("a", 2, pinned=False),
        make_row("a", 2, virtual_hosts=True, link="50mbit"),
        make_row("a", 2, virtual_hosts=True, link="50mbit", cpus_per_rank=0.2),
        make_row("a", 2, stamps=["paced"]),
        make_row("a", 2, stamps=["simulated"]),
    ]
    assert len({row_name(row) for row in other}) == len(other)
    assert row_name(LAB) == (
        "ddp/ddp-lab N=2 [gpt-mini, strong, cpu, virtual hosts 50mbit, 0.2 CPU per rank, paced]"
    )


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("parquet", "chrome-trace")])
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


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "chrome-trace"])
def test_an_empty_run_is_never_a_good_one(name):
    nothing = make_summary([make_missing("ddp", 2, "failed", "rank 1: it broke")])
    if FORMATS[name].only_good:
        with pytest.raises(ScalebenchError, match=r"No row of .* succeeded"):
            exported(name, nothing)
    else:
        assert "it broke" in str(exported(name, nothing))


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("parquet", "chrome-trace")])
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


# pytest-benchmark


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


# github-action-benchmark and Bencher


def test_github_action_benchmark_keeps_the_directions_apart():
    fields = {}
    for better in ("bigger", "smaller"):
        entries = json.loads(exported(f"github-action-benchmark-{better}"))
        for entry in entries:
            assert set(entry) <= {"name", "unit", "value", "range", "extra"}
            assert isinstance(entry["value"], int | float)
            texts = [entry[key] for key in ("name", "unit", "range", "extra") if key in entry]
            assert all(isinstance(text, str) for text in texts)
        assert len({entry["name"] for entry in entries}) == len(entries)
        fields[better] = {entry["name"].rpartition(" ")[2] for entry in entries}
    assert not fields["bigger"] & fields["smaller"]
    assert {"throughput", "efficiency", "speedup"} <= fields["bigger"]
    assert {"step_s", "peak_memory_bytes", "wait_s"} <= fields["smaller"]
    assert not {"prediction_error", "predicted_step_s"} & (fields["bigger"] | fields["smaller"])


def test_bencher_metric_format_with_bounds():
    content = json.loads(exported("bencher"))
    jsonschema.validate(content, BMF)
    row = row_at("ddp-25mb", 4)
    found = content[row_name(row)]
    assert found["efficiency"] == {
        "value": row.efficiency.value,
        "lower_value": row.efficiency.low,
        "upper_value": row.efficiency.high,
    }
    assert found["peak-memory-bytes"] == {"value": row.peak_memory_bytes}
    assert "mfu" not in found
    assert all(len(name) <= 1024 for name in content)
    assert all(len(measure) <= 64 for measures in content.values() for measure in measures)
    assert not any("N=8" in name for name in content)


# OpenMetrics


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


def found_reader(program):
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed: apt-get install {READERS[program]}")
    return path


READERS = {"promtool": "prometheus", "prometheus-node-exporter": "prometheus-node-exporter"}


@pytest.mark.parametrize("name", RUNS)
def test_promtool_finds_nothing_to_object_to(name):
    command = [found_reader("promtool"), "check", "metrics"]
    text = exported("openmetrics", RUNS[name])
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_node_exporter_takes_every_sample(tmp_path):
    text = exported("openmetrics", hostile_summary())
    (tmp_path / "scalebench.prom").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    wanted = (
        *("--collector.disable-defaults", "--collector.textfile"),
        *(f"--collector.textfile.directory={tmp_path}", f"--web.listen-address={address}"),
    )
    with subprocess.Popen(
        [found_reader("prometheus-node-exporter"), *wanted], stderr=subprocess.DEVNULL
    ) as server:
        try:
            scraped = _scraped(f"http://{address}/metrics")
        finally:
            server.kill()
    assert "node_textfile_scrape_error 0" in scraped
    ours = [line for line in text.splitlines() if line.startswith("scalebench_")]
    assert sum(line.startswith("scalebench_") for line in scraped.splitlines()) == len(ours)


def _scraped(url):
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@given(st.text())
def test_any_text_is_one_label(text):
    row = make_row("ddp", 2, workload=text, unavailable={"mfu": text})
    found = families(exported("openmetrics", make_summary([row])))
    (sample,) = found["scalebench_step_seconds"].samples
    assert sample.labels["case"] == "ddp"


# JUnit


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


@pytest.mark.parametrize("summary", [SUMMARY, hostile_summary()], ids=["usual", "hostile"])
def test_junit_holds_to_the_schema(summary):
    root = ElementTree.fromstring(exported("junit", summary))
    assert_of_the_schema(root)
    assert len(list(root.iter("testcase"))) == len(summary.rows)


def test_junit_divides_a_launch_among_the_rows_that_took_turns_in_it():
    cells = [make_cell("plain", 1), make_cell("ddp", 2)]
    cells.append(make_cell("plain", 1, purpose="independent", rank_batch=16))
    ids = [cell.id for cell in cells]
    run = make_run([make_result(cell, wall_s=9.0, shared_with=ids) for cell in cells])
    (suite,) = junitparser.JUnitXml.fromstring(exported("junit", summarise(run), run).encode())
    assert [case.time for case in suite] == [3.0, 3.0]
    assert suite.time == 9.0


@given(st.text())
def test_any_reason_is_legal_xml(text):
    row = make_missing("ddp", 2, "failed", text)
    suite = next(iter(junitparser.JUnitXml.fromstring(exported("junit", make_summary([row])))))
    assert suite.failures == 1


# Collectives


def timed(failure=None):
    """All-reduces of 2 and 4 ranks, in place and out of place."""
    points = [*line(), *line(num_ranks=4)]
    both = [p.model_copy(update={"in_place": side}) for side in (False, True) for p in points]
    about = {"created": "2024-05-01", "version": "0", "device": "cpu", "backend": "gloo"}
    fits = [row for fit in profile_of(both, (), **about).fits for row in fit.rows()]
    told = TimedCollectives(suites=["links"], num_points=len(both), num_wrong=0, fits=fits)
    return make_summary([], collectives=told.model_copy(update={"failure": failure}))


def test_collectives_are_series_where_a_tool_follows_numbers():
    name = "links/all_reduce N=2 [float32, backend, in place]"
    found = json.loads(exported("bencher", timed()))
    jsonschema.validate(found, BMF)
    assert len(found) == 4 and found[name]["latency-s"]["value"] == pytest.approx(ALPHA_S)
    assert found[name]["bandwidth-byte-per-s"]["value"] == pytest.approx(BANDWIDTH)
    bigger, smaller = (
        json.loads(exported(f"github-action-benchmark-{better}", timed()))
        for better in ("bigger", "smaller")
    )
    assert {entry["unit"] for entry in bigger} == {"bytes/s"}
    assert {entry["unit"] for entry in smaller} == {"s"}
    assert f"{name} latency_s" in {entry["name"] for entry in smaller}


@pytest.mark.parametrize(
    ("name", "failure", "said"),
    [
        ("pytest-benchmark", None, "timed collectives and trained nothing"),
        ("bencher", "2 elements are wrong", "they failed: 2 elements are wrong"),
        ("github-action-benchmark-bigger", "2 elements are wrong", "2 elements are wrong"),
        ("chrome-trace", None, "it trained nothing"),
    ],
)
def test_what_a_run_of_collectives_lacks_is_said(name, failure, said):
    with pytest.raises(ScalebenchError, match=said):
        exported(name, timed(failure))


@pytest.mark.parametrize("failure", [None, "3 elements of results are wrong"])
def test_collectives_that_went_wrong_are_a_failure(failure):
    text = exported("junit", timed(failure))
    assert_of_the_schema(ElementTree.fromstring(text))
    ((case,),) = junitparser.JUnitXml.fromstring(text.encode())
    assert [found.message for found in case.result] == ([failure] if failure else [])
    assert "op: all_reduce" in case.system_out


# Tables


def test_pandas_reads_the_csv_back():
    table = pd.read_csv(io.StringIO(exported("csv")))
    assert table["step_s"].isna().sum() == 3
    row = row_at("ddp-25mb", 2)
    line = table[(table["case"] == "ddp-25mb") & (table["world_size"] == 2)].iloc[0]
    assert (line["efficiency"], line["efficiency_low"]) == (
        row.efficiency.value,
        row.efficiency.low,
    )
    assert json.loads(line["unavailable"]) == row.unavailable


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


def test_without_pyarrow_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ScalebenchError, match=r"pip install 'scalebench\[parquet\]'") as refused:
        exported("parquet")
    assert refused.value.exit_code == 5


# Chrome trace


def traced_run():
    """Two ranks; the second's clock is 3 ms behind, and it has two operations at once."""
    behind = ClockAlignment(method="ping-pong", at_ns=0, offset_ns=-3_000_000, bound_ns=10)
    first = make_trace([make_operation(60, 90)], compute=[(0, 50), (50, 60)], origin=1000)
    second = make_trace(
        [make_operation(60, 90), make_operation(70, 95, ordinal=1)],
        compute=[(0, 55)],
        origin=997,
        actions=[TracedAction(kind="F", stage=0, microbatch=1, step=0, start_ns=5, end_ns=1005)],
        copies=[55_000_000, 57_000_000],
    )
    result = make_traced_result(
        make_traced_record(0, first), make_traced_record(1, second, clock=behind)
    )
    return make_run([result])


def chrome(run):
    return json.loads(exported("chrome-trace", summarise(run), run))["traceEvents"]


def test_chrome_trace_puts_ranks_on_one_clock():
    events = chrome(traced_run())
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


def test_the_file_beside_the_page_holds_one_launch_of_each_row():
    (result,) = traced_run().results.values()
    again = result.model_copy(
        update={"cell": result.cell.model_copy(update={"repeat": result.cell.repeat + 1})}
    )
    run = make_run([result, again])
    beside = json.loads(one_of_each_row(run, summarise(run)))["traceEvents"]
    assert beside == chrome(traced_run()) and len(chrome(run)) == 2 * len(beside)
    assert one_of_each_row(make_run(make_small_run()), summarise(run)) is None


def test_chrome_trace_is_what_the_format_asks_for():
    threads = {}
    for event in chrome(traced_run()):
        assert event["ph"] in "MX" and {"name", "pid", "tid"} <= set(event)
        if event["ph"] == "M":
            assert event["args"]
            continue
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["cat"]
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in threads.values():
        events.sort(key=lambda e: e["ts"])
        for one, next_ in pairwise(events):
            assert one["ts"] + one["dur"] <= next_["ts"] + 1e-6


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_no_two_operations_of_a_lane_overlap(spans):
    operations = [make_operation(start, start + length) for start, length in spans]
    found = lanes(operations)
    assert sum(map(len, found)) == len(operations)
    for lane in found:
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(lane))
    most = max(
        (sum(o.start_ns <= t.start_ns < o.end_ns for o in operations) for t in operations),
        default=0,
    )
    assert len(found) <= max(most, 1) if operations else not found


def test_a_run_without_traces_says_why_there_is_nothing():
    run = make_run(make_small_run())
    summary = summarise(run)
    with pytest.raises(UsageError, match="no reason is recorded"):
        exported("chrome-trace", summary, run)
    summary.reproduce += " --no-trace"
    with pytest.raises(UsageError, match="--no-trace left them out"):
        exported("chrome-trace", summary, run)


# The command


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """Run the command; returns its exit code and what it printed."""
    paths = make_stored_run(tmp_path / "run", [*make_small_run()])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["export", str(paths.root), *arguments])
        return SimpleNamespace(returncode=end.value.code, **capsys.readouterr()._asdict())

    return run


def test_export_writes_two_files_for_two_directions(export, tmp_path):
    done = export("--format", "github-action-benchmark", "--out", "bench.json")
    assert done.returncode == 0, done.err
    assert done.out.split() == ["bench.bigger.json", "bench.smaller.json"]
    measures = []
    for name in done.out.split():
        found = json.loads((tmp_path / name).read_text())
        measures.append({entry["name"].rpartition(" ")[2] for entry in found})
        umask = os.umask(0)
        os.umask(umask)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask
    bigger, smaller = measures
    efficiencies = {"efficiency", "efficiency_wrapped"}
    assert bigger == {"throughput", "tokens_per_s", "speedup"} | efficiencies
    assert {"step_s", "peak_memory_bytes"} <= smaller and not bigger & smaller


def test_export_refuses_in_one_line(export):
    for arguments, word in (
        (["--format", "junitt"], "Did you mean 'junit'?"),
        (["--format", "parquet"], "--out FILE.parquet"),
        (["--format", "github-action-benchmark"], "two files"),
        (["--format", "chrome-trace"], "no traced steps"),
        (["--format", "csv", "--out", "."], "is a directory"),
    ):
        refused = export(*arguments)
        assert (refused.returncode, refused.out) == (2, ""), refused
        assert word in refused.err
        assert len(refused.err.splitlines()) == 1


def test_export_says_what_it_left_out(tmp_path):
    from click.testing import CliRunner

    from scalebench.cli import cli
    from tests.builders.runs import make_failed

    results = [*make_small_run(), make_failed(make_cell("ddp", 4), "rank 3: it broke")]
    paths = make_stored_run(tmp_path / "run", results)
    done = CliRunner().invoke(cli, ["export", str(paths.root), "--format", "bencher"])
    assert done.exit_code == 0
    assert "left out: ddp/ddp N=4 [gpt-tiny, strong, cpu]: failed: rank 3: it broke" in done.stderr
    assert all("N=4" not in name for name in json.loads(done.stdout))


# What checkpoints and failures cost


def recovered():
    return make_summary([make_row("ddp", 2, recovery=recovery(0.1, 2.0))])


def test_each_way_to_save_and_each_kind_of_failure_is_a_number_of_its_own():
    found = {measure.field: (measure, number) for measure, number in numbers(recovered().rows[0])}
    measure, number = found["async_checkpoint_stall_s"]
    assert (measure.unit, measure.better, number.value) == ("s", "smaller", 0.1)
    assert found["kill_torchrun_restart_s"][1].value == 2.0
    (metrics,) = json.loads(exported("bencher", recovered())).values()
    assert metrics["async-checkpoint-stall-s"]["value"] == 0.1
    entries = json.loads(exported("github-action-benchmark-smaller", recovered()))
    (restart,) = [e for e in entries if e["name"].endswith("kill_torchrun_restart_s")]
    assert "failures: 5" in restart["extra"]
    assert "async_checkpoint_durable_s: 0.2 s [0.198, 0.202], 5 saves" in exported(
        "junit", recovered()
    )
