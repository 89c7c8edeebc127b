"""Who may import torch, the suites and the tests; and that no import goes unseen."""

from tests.builders.imports import FILES, PACKAGE, imported


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


def test_imports_are_seen_wherever_they_stand():
    code = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
else:
    import one
def f():
    from scalebench.worker import loop
    try:
        import two.three
    except ImportError:
        from four import five
from . import six
from .seven import eight
"""
    seen = {"typing.TYPE_CHECKING", "one", "scalebench.worker.loop", "two.three", "four.five"}
    assert imported(code) == seen | {"..six", ".seven.eight"}
