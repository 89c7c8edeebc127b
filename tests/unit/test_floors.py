"""The house as a test: what stands on which floor. CONTRIBUTING.md has its picture."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scalebench

PACKAGE = Path(scalebench.__file__).parent
FLOORS = [
    {"__init__", "errors", "units", "stats", "cgroups", "processors"},
    {"spec"},
    {"records", "machine"},
    {"trace", "costmodel", "gate", "launch"},
    {"worker", "analysis"},
    {"report"},
    {"session"},
    {"cli", "pytest_plugin", "__main__"},
]
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = [p for p in PACKAGE.rglob("*.py") if "_suites" not in p.parts]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imported(code: str) -> set[str]:
    """What a module imports when it runs, wherever the import stands, as dotted names."""
    nodes, found = [ast.parse(code)], set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside the package are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported_by(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path.read_text(encoding="utf-8")))
    inside = {parts[1] for parts in names if parts[0] == "scalebench" and len(parts) > 1}
    return {room if room in ROOMS else "__init__" for room in inside} - {room_of(path)}


def test_every_file_and_package_has_its_floor():
    assert {room_of(path) for path in MODULES} == set(ROOMS)
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert len(packages - {"cli", "pytest_plugin"}) <= 10
    assert len(ROOMS) - len(packages) <= 8
    assert len(FLOORS) <= 9


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_floors(path):
    floor = ROOMS[room_of(path)]
    wrong = {room for room in rooms_imported_by(path) if ROOMS[room] > floor}
    assert not wrong, f"{path} on floor {floor} imports {wrong} from above"


def test_no_two_packages_import_each_other():
    graph = {room: set() for room in ROOMS}
    for path in MODULES:
        graph[room_of(path)] |= rooms_imported_by(path)
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("room", ["launch", "worker", "report"])
def test_launch_worker_and_report_never_import_one_another(room):
    for path in MODULES:
        if room_of(path) == room:
            assert not rooms_imported_by(path) & ({"launch", "worker", "report"} - {room}), path


def test_only_the_worker_imports_torch_and_nothing_imports_the_suites_or_the_tests():
    for path in MODULES:
        roots = {name.partition(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
        assert "torch" not in roots or room_of(path) == "worker", path
        assert not roots & {"suites", "_suites", "tests"}, path


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
"""
    seen = {"typing.TYPE_CHECKING", "one", "scalebench.worker.loop", "two.three", "four.five"}
    assert imported(code) == seen
