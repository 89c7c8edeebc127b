"""The wheel: built, installed in an empty environment, and the main job run from elsewhere."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.integration.conftest import SHORT, row_of

ROOT = Path(__file__).parents[2]

_OF_THESE_TESTS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def checked(*command: str, cwd: Path) -> str:
    """Run a command that has to succeed; return its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in _OF_THESE_TESTS}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=900, env=inherited
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(1800)
def test_the_wheel_does_the_main_job(tmp_path: Path) -> None:
    built = (*(sys.executable, "-m", "build", "--wheel", "--no-isolation"), "-o", str(tmp_path))
    checked(*built, str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"scalebench/py.typed", "scalebench/_suites/ddp.py"} <= set(names)
    assert any(name.endswith("report.html.j2") for name in names)
    assert "scalebench/_docs/definitions.md" in names
    assert not any(name.startswith(("tests/", "suites/", "reports/")) for name in names)

    environment = tmp_path / "env"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    install += ("--no-compile",)  # what is imported is compiled, a tenth of what is installed
    checked(*install, "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=tmp_path)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = str(environment / "bin" / "scalebench")
    flags = [flag for flag in SHORT if flag != "--no-report"]
    out = checked(command, "run", "ddp", "-k", "1mb", "--gpus", "1,2", *flags, cwd=elsewhere)
    (page,) = [line for line in out.splitlines() if line.startswith("Report")]
    assert page.endswith("report.html")
    text = next((elsewhere / "reports").glob("*/report.html")).read_text(encoding="utf-8")
    assert 'id="word-efficiency"' in text
    row = row_of(elsewhere / "reports" / "latest", "ddp-bucket-1mb", 2)
    assert (row["status"], row["correctness"]["status"]) == ("ok", "verified")
