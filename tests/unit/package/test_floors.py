"""The house as a test: what stands on which floor. CONTRIBUTING.md has its picture."""

import re
from graphlib import TopologicalSorter

from tests.builders.repository.imports import FILES, FLOORS, PACKAGE, imported

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
STRANGERS = {"launch", "worker", "report"}


def rooms_imported_by(file):
    names = [name.split(".") for name in imported((PACKAGE / file).read_text(encoding="utf-8"))]
    assert all(name[0] for name in names), f"{file}: imports inside the package are absolute"
    inside = {name[1] for name in names if name[0] == "scalebench" and len(name) > 1}
    return {room if room in FLOOR else "__init__" for room in inside}


def test_every_file_and_package_has_its_floor():
    packages = {file.parts[0] for file in FILES if len(file.parts) > 1}
    assert packages | {file.stem for file in FILES if len(file.parts) == 1} == set(FLOOR)
    assert len(packages - {"cli", "pytest_plugin"}) <= 13
    assert len(FLOOR) - len(packages) <= 8
    assert len(FLOORS) <= 9


def test_imports_go_down_in_no_circle_and_launch_worker_and_report_are_strangers():
    house = {room: set() for room in FLOOR}
    modules = {".".join(("scalebench", *file.with_suffix("").parts)) for file in FILES}
    ties = {}
    for file in FILES:
        names = imported((PACKAGE / file).read_text(encoding="utf-8"), of_types=True)
        module = ".".join(("scalebench", *file.with_suffix("").parts))
        ties[module] = {m for n in names for m in (n, n.rpartition(".")[0])} & modules - {module}
        room = file.parts[0].removesuffix(".py")
        others = rooms_imported_by(file) - {room}
        above = {other for other in others if FLOOR[other] > FLOOR[room]}
        assert not above, f"{file} on floor {FLOOR[room]} imports {above} from above"
        assert not (room in STRANGERS and others & STRANGERS), f"{file} imports {others}"
        house[room] |= others
    TopologicalSorter(house).prepare()
    TopologicalSorter(ties).prepare()


def test_only_the_worker_imports_torch_and_nothing_imports_the_suites_or_the_tests():
    for file in FILES:
        code = (PACKAGE / file).read_text(encoding="utf-8")
        roots = {name.partition(".")[0] for name in imported(code)}
        assert "torch" not in roots or file.parts[0] == "worker", file
        assert not roots & {"suites", "_suites", "tests"}, file
        # No rank unpickles what another has sent: torch's collectives of objects do.
        assert not re.search(r"\b(dist\.\w*_object|pickle\.loads?\b)", code), file


def test_a_suite_imports_only_the_public_names():
    for path in (PACKAGE.parent / "suites").glob("*.py"):
        names = imported(path.read_text(encoding="utf-8"))
        assert {name.partition(".")[0] for name in names} == {"scalebench"}, path
        assert all(name.count(".") == 1 for name in names), path
