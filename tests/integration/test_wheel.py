"""The wheel: built, installed with what it asks for alone, and the main job run from elsewhere."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from scalebench.cli import cli
from tests.integration.conftest import TRACED, row_of

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


def needed_by(requirements: Iterable[str]) -> set[str]:
    """Return the distributions that requirements ask for, and those that these ask for."""
    found: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        one = left.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            left += map(Requirement, distribution(one.name).requires or ())
    return found


def test_the_wheel_does_the_main_job(tmp_path: Path) -> None:
    built = (*(sys.executable, "-m", "build", "--wheel", "--no-isolation"), "-o", str(tmp_path))
    checked(*built, str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"scalebench/py.typed", "scalebench/_suites/ddp.py"} <= set(names)
    assert any(name.endswith("report.html.j2") for name in names)
    assert "scalebench/_docs/definitions.md" in names
    assert {f"scalebench/schemas/{of}-1.schema.json" for of in ("run", "summary")} <= set(names)
    assert not any(name.startswith(("tests/", "suites/", "reports/")) for name in names)

    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    install = (sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"))
    install += ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile")
    checked(*install, str(wheel), cwd=tmp_path)
    (written,) = packages.glob("scalebench-*.dist-info/METADATA")
    for name in needed_by(re.findall(r"^Requires-Dist: (.*)$", written.read_text(), re.M)):
        for top in {file.parts[0] for file in distribution(name).files or () if file.parts}:
            source = Path(str(distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(source)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = str(environment / "bin" / "scalebench")
    for name in cli.commands:
        assert checked(command, name, "--help", cwd=elsewhere).startswith("Usage: scalebench")
    flags = [flag for flag in TRACED if flag != "--no-report"]
    out = checked(command, "run", "ddp", "-k", "1mb", "--gpus", "1,2", *flags, cwd=elsewhere)
    (page,) = [line for line in out.splitlines() if line.startswith("Report")]
    assert page.endswith("report.html")
    text = next((elsewhere / "reports").glob("*/report.html")).read_text(encoding="utf-8")
    assert 'id="word-efficiency"' in text
    row = row_of(elsewhere / "reports" / "latest", "ddp-bucket-1mb", 2)
    assert (row["status"], row["correctness"]["status"]) == ("ok", "verified")
