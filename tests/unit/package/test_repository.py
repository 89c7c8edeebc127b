import os
import subprocess
import sys
import tomllib

import pytest
import yaml

import scalebench
from scalebench.spec import STRATEGIES
from tests.builders.repository.documents import ROOT
from tests.builders.repository.frameworks import TOOLS, need
from tests.examples import cases
from tests.tools.field_tables import PAGE, RECORDS, meanings, page
from tests.tools.sizes import HELD, sizes, tracked

SCHEMAS = {
    "vendor.citation-file-format": "CITATION.cff",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
}


@cases("schema", *SCHEMAS)
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


@pytest.mark.slow
def test_the_site_has_every_document_and_refuses_a_link_that_leads_nowhere(tmp_path):
    need(TOOLS, "mkdocs", "material")
    told = {**os.environ, "PAGES": str(tmp_path / "pages"), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(["make", "pages"], cwd=ROOT, env=told, check=True, capture_output=True)
    words = [TOOLS, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(words, cwd=ROOT, env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for document in (ROOT / "docs").glob("*.md"):
        name = "index" if document.stem == "README" else document.stem
        assert (tmp_path / "site" / "docs" / f"{name}.html").exists()
    found = (tmp_path / "site" / "search" / "search_index.json").read_text()
    assert "What connects where" in found
    with (tmp_path / "pages" / "docs" / "faq.md").open("a") as page:
        page.write("[a](nowhere.md) [b](gate.md#nowhere)\n")
    done = subprocess.run(words, cwd=ROOT, env=told, capture_output=True, text=True)
    assert done.returncode and "nowhere.md" in done.stderr and "#nowhere" in done.stderr


def test_the_page_is_what_the_records_say():
    written = (ROOT / PAGE).read_text()
    assert written == page(), "make it again: python -m tests.tools.field_tables"


@cases("record", *RECORDS, *STRATEGIES.values())
def test_every_field_of_a_docstring_exists(record):
    stray = {name for name in meanings(record) if not hasattr(record, name)}
    assert stray <= set(record.model_fields)


def test_nothing_grows_beyond_its_goal_or_what_was_reached(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert {name: now for name, now in sizes(tracked()).items() if now > HELD[name]} == {}
