"""The architecture as a test: which module may import which."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import scalebench

PACKAGE = Path(scalebench.__file__).parent

FLOORS = {
    "scalebench": 0,  # the public names, loaded when first used
    "units": 0,
    "errors": 0,
    "intervals": 0,
    "plain_text": 0,
    "catalog": 1,
    "workload": 1,
    "collectives": 1,
    "compression": 1,
    "virtual_hosts": 1,
    "world": 1,
    "spec": 1,
    "records": 1,
    "probe": 1,
    "planted": 1,
    "certificate": 1,
    "samples": 1,
    "paths": 1,
    "cgroups": 1,
    "stats": 2,
    "claims": 2,
    "recorded_clock": 2,
    "seal": 2,
    "gpu_claims": 2,
    "anonymity": 2,
    "too_large": 2,
    "unstored": 2,
    "certificates": 2,
    "store": 2,
    "discover": 2,
    "selection": 2,
    "machine": 2,
    "plan": 2,
    "launches": 2,
    "attribution": 2,
    "budget": 2,
    "row_fields": 2,
    "row_launches": 2,
    "row_beside_none": 2,
    "row_pipeline": 2,
    "pipeline_shape": 2,
    "pipeline_trace": 2,
    "row_attribution": 2,
    "row_resources": 2,
    "row_prediction": 2,
    "row_what_if": 2,
    "evidence": 2,
    "model_scores": 2,
    "projection": 2,
    "step_shape": 2,
    "row_compression": 2,
    "row_break_even": 2,
    "loss_race": 2,
    "scaling": 2,
    "summary": 2,
    "frames": 2,
    "exporters": 2,
    "outcome": 2,
    "forecast": 2,
    "frontier": 2,
    "inventory": 2,
    "diagnosis": 2,
    "costmodel": 2,
    "peaks": 2,
    "trace": 2,
    "nccl_tests": 2,
    "monitor": 2,
    "windows": 2,
    "energy": 2,
    "validity": 2,
    "verdict": 2,
    "submission": 2,
    "launch": 3,
    "worker": 3,
    "report": 3,
    "observer": 2,
    "session": 4,
    "ending": 4,
    "deciding": 4,
    "selftest": 4,
    "calibration": 4,
    "run_calibration": 4,
    "survey": 4,
    "shares": 4,
    "drawing": 4,
    "gallery": 4,
    "interleaving": 4,
    "cli": 5,
    "pytest_plugin": 5,
    "__main__": 5,
}
"""Every module, or package, directly below ``scalebench/``, and the floor it stands on."""

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] != "_suites"
}
"""Dotted name below ``scalebench`` → file; the package's own ``__init__`` under that name."""


def unit(module: str) -> str:
    """The entry of FLOORS that a module belongs to."""
    return "scalebench" if module == "__init__" else module.partition(".")[0]


def runtime_nodes(tree: ast.AST):
    """All nodes but those below ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from runtime_nodes(other)
        else:
            yield node
            yield from runtime_nodes(node)


def imported(tree: ast.AST, module: str = "x"):
    """Absolute dotted names that a module imports when it runs, wherever the import stands."""
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports inside the package are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("scalebench.") in MODULES
                yield full if is_module else str(node.module)


def imports_of(module: str) -> set[str]:
    return set(imported(ast.parse(MODULES[module].read_text(encoding="utf-8")), module))


def units_imported_by(module: str) -> set[str]:
    inside = (n for n in imports_of(module) if n.partition(".")[0] == "scalebench")
    return {unit(name.removeprefix("scalebench.")) for name in inside} - {unit(module)}


def test_every_module_has_a_floor_and_every_floor_a_module():
    assert {unit(module) for module in MODULES} == set(FLOORS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_lower_floors(module):
    mine = FLOORS[unit(module)]
    may_import_beside = mine in (1, 2, 4)
    wrong = {
        other
        for other in units_imported_by(module)
        if FLOORS[other] > mine or (FLOORS[other] == mine and not may_import_beside)
    }
    if unit(module) == "__main__":
        wrong -= {"cli"}
    assert not wrong, f"{module} (floor {mine}) imports {wrong}"


@pytest.mark.parametrize("floor", sorted(set(FLOORS.values())))
def test_there_is_no_import_cycle_within_a_floor(floor):
    here = {name for name, number in FLOORS.items() if number == floor}
    graph = {name: set() for name in here}
    for module in MODULES:
        if unit(module) in here:
            graph[unit(module)] |= units_imported_by(module) & here
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(f"import cycle: {' → '.join(cycle.args[1])}")


@pytest.mark.parametrize("package", ["launch", "worker", "report"])
def test_launch_worker_and_report_never_import_one_another(package):
    others = {"launch", "worker", "report"} - {package}
    for module in MODULES:
        if unit(module) == package:
            assert not units_imported_by(module) & others, module


@pytest.mark.parametrize("module", sorted(m for m in MODULES if unit(m) != "worker"))
def test_only_the_worker_imports_torch(module):
    assert "torch" not in {name.partition(".")[0] for name in imports_of(module)}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_imports_the_suites_or_the_tests(module):
    roots = {name.partition(".")[0] for name in imports_of(module)}
    assert not roots & {"suites", "_suites", "tests"}


def test_a_suite_imports_only_the_public_names():
    for path in (PACKAGE.parent / "suites").glob("*.py"):
        assert set(imported(ast.parse(path.read_text(encoding="utf-8")))) == {"scalebench"}, path


def test_these_tests_see_imports_wherever_they_stand():
    text = """
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
    found = set(imported(ast.parse(text)))
    assert found == {"typing", "one", "scalebench.worker.loop", "two.three", "four"}
