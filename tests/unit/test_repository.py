"""Files that other people's tools read: each is taken by the published schema of its tool."""

import subprocess
import sys
import tomllib

import pytest
import yaml

import scalebench
from tests.builders.documents import ROOT

SCHEMAS = {
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_their_schemas_take_them(schema):
    files = sorted(map(str, ROOT.glob(SCHEMAS[schema])))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(check, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout


def test_the_citation_names_this_version_and_license():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (scalebench.__version__, project["license"])


def test_the_hooks_before_a_commit_are_what_make_lint_does():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"] for hook in repository["hooks"]]
    done = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True)
    lines = [line.removesuffix(" .") for line in done.stdout.splitlines() if "ruff" in line]
    assert hooks == lines and len(hooks) == 2
