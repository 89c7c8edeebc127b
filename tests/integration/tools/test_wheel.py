"""The wheel: built from the source package, installed with what it asks for alone, and run."""

import os
import re
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scalebench.cli import cli
from tests.builders.repository.frameworks import TOOLS, need
from tests.conftest import ran
from tests.integration.conftest import TRACED, row_of

ROOT = Path(__file__).parents[3]

_OF_THESE_TESTS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def checked(*command, cwd):
    """Run a command that has to succeed; return its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in _OF_THESE_TESTS}
    return ran(command, cwd=cwd, env=inherited, code=0).stdout


def needed_by(requirements):
    """Return the distributions that requirements ask for, and those that these ask for."""
    found = set()
    left = [Requirement(text) for text in requirements]
    while left:
        one = left.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            left += map(Requirement, distribution(one.name).requires or ())
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(ROOT))
    checked(*command, cwd=folder)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


def test_both_packages_are_what_an_index_takes(built):
    need(TOOLS, "twine")
    said = checked(str(TOOLS), "-m", "twine", "check", "--strict", *map(str, built), cwd=ROOT)
    assert said.count("PASSED") == 2


def test_the_wheel_does_the_main_job(built, tmp_path):
    source, wheel = built
    with tarfile.open(source) as packages:
        packed = {name.partition("/")[2] for name in packages.getnames()}
    assert {"LICENSE", "docs/gate.md", "suites/ddp.py", "tests/conftest.py"} <= packed
    assert not any(name.startswith(("reports/gallery/", ".ci/", ".venv")) for name in packed)
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
