"""Who may import torch, the suites and the tests."""

from tests.builders.repository.imports import FILES, PACKAGE, imported


def test_only_the_worker_imports_torch_and_nothing_imports_the_suites_or_the_tests():
    for file in FILES:
        code = (PACKAGE / file).read_text(encoding="utf-8")
        roots = {name.partition(".")[0] for name in imported(code)}
        assert "torch" not in roots or file.parts[0] == "worker", file
        assert not roots & {"suites", "_suites", "tests"}, file


def test_a_suite_imports_only_the_public_names():
    for path in (PACKAGE.parent / "suites").glob("*.py"):
        names = imported(path.read_text(encoding="utf-8"))
        assert {name.partition(".")[0] for name in names} == {"scalebench"}, path
        assert all(name.count(".") == 1 for name in names), path
