"""The documented exports, carried out on a small stored run."""

from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.report.export.measures import row_name
from tests.builders.repository.documents import ROOT, commands
from tests.builders.runs import make_cell, make_inspection, make_stored_run
from tests.builders.summaries import make_row
from tests.builders.tracing.traced import (
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)


def test_the_examples_of_exports(tmp_path, monkeypatch):
    trace = make_trace([make_operation(60, 90)], compute=[(0, 50)])
    records = [make_traced_record(rank, trace) for rank in range(2)]
    results = [make_inspection(make_cell()), make_traced_result(*records)]
    make_stored_run(tmp_path / "reports" / "latest", results)
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
