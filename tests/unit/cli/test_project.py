"""The exit code of ``scalebench project`` says whether anything was projected."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.errors import ExitCode

RUN = str(Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores")


@pytest.mark.parametrize(
    ("gpus", "code"), [("16", ExitCode.OK), ("16,64", ExitCode.OK), ("64", ExitCode.INCONCLUSIVE)]
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_table_without_a_single_step_is_no_projection(gpus, code, form):
    """The run's batch of 16 has no sample for each of 64 ranks."""
    done = CliRunner().invoke(cli, ["project", RUN, "--gpus", gpus, *form], standalone_mode=False)
    assert done.exception is None
    assert done.return_value == code
    assert ("no sample for each of 64 ranks" in " ".join(done.output.split())) == ("64" in gpus)
