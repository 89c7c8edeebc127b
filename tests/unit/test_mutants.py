"""The places that ``benchmarks/mutants.py`` changes, and what it runs."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from benchmarks import mutant_tests, mutants
from benchmarks.called_functions import FOLDER, PACKAGES, Called, file_of, load_calls
from benchmarks.mutant_tests import (
    ENOUGH_S,
    IMPORT,
    TIME_LIMIT,
    UNDECIDED,
    fails_anyway,
    function_at,
    importers,
)
from benchmarks.mutant_tests import tests_of as groups_for
from benchmarks.mutants import ROOT, Mutant, draw, show, wilson
from benchmarks.mutations import places_of

pytestmark = pytest.mark.slow


def changes(source: str) -> set[tuple[str, str]]:
    code = source.encode()
    return {
        (code[place.begin : place.end].decode(), choice)
        for place in places_of(code)
        for choice in place.choices
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {("a < b", "(a <= b)"), ("a < b", "(a >= b)")}),
        ("a == b", {("a == b", "(a != b)")}),
        ("a * b", {("a * b", "(a / b)")}),
        ("a and b", {("a and b", "(a or b)")}),
        ("not a", {("not a", "(a)")}),
        ("x = 3", {("3", "(2)"), ("3", "(4)"), ("3", "(6)")}),
        ("x = 0", {("0", "(-1)"), ("0", "(1)")}),
        ("x = True", {("True", "(False)")}),
        ("min(a, key=f)", {("min(a, key=f)", "(max(a, key=f))")}),
        ("abs(a)", {("abs(a)", "(a)")}),
        ("a[n:]", {("a[n:]", "(a[n + 1:])")}),
        ("a[:-n]", {("a[:-n]", "(a[:])")}),
        ("'Größe'; a != b", {("a != b", "(a == b)")}),
        ("def f() -> int | None: return g()", {("g()", "(None)")}),
    ],
)
def test_what_can_be_changed(source, expected):
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Three of 4."""',
        "__all__ = ['a'][0:1]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "x: Literal[3]",
        "raise E(f'{a + b}', 3)",
        "assert a < 4",
        "f'{a + 1:>8}'",
        "'a' + b",
        "def f() -> int: return g()",
        "def f() -> int | None: return None",
    ],
)
def test_what_stays_as_it_is(source):
    assert changes(source) == set()


def test_every_change_is_another_program_and_the_same_seed_draws_the_same():
    found = draw(PACKAGES, 10_000, seed=1)
    assert len({*found}) == len(found) > 3_000
    for mutant in found[:300]:
        source = (ROOT / mutant.path).read_bytes()
        end = mutant.begin + len(mutant.before.encode())
        assert source[mutant.begin : end].decode() == mutant.before
        changed = source[: mutant.begin] + mutant.after.encode() + source[end:]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert draw(["gate"], 5, seed=2) == draw(["gate"], 5, seed=2) != draw(["gate"], 5, seed=3)


SOURCE = """
LIMIT = 3


class Line:
    width: int = 4

    @property
    def name(self):
        return [x for x in (lambda y: y)(LIMIT)]

    def outer(self, least=2):
        def inner():
            return 5

        return inner
"""


@pytest.mark.parametrize(
    ("line", "function"),
    [
        *((2, None), (6, None), (8, "Line.name"), (10, "Line.name"), (12, "Line.outer")),
        *((14, "Line.outer.<locals>.inner"), (16, "Line.outer")),
    ],
)
def test_a_line_belongs_to_the_innermost_function_around_it(line, function):
    assert function_at(SOURCE, line) == function
    if function and "<locals>" not in function:
        space = {}
        exec(SOURCE, space)
        member = vars(space["Line"])[function.partition(".")[2]]
        assert getattr(member, "fget", member).__code__.co_qualname == function


INTERVALS = "scalebench/trace/intervals.py"
OWN = "tests/unit/trace/test_intervals.py"


def line_of_clip() -> int:
    return (ROOT / INTERVALS).read_text().partition("def clip(")[0].count("\n") + 1


def test_a_modules_own_tests_come_first_then_the_short_files_of_those_that_call_the_function():
    clip, other = frozenset({f"{INTERVALS}::clip"}), frozenset({f"{INTERVALS}::union"})
    long, short, stranger = (f"tests/unit/report/test_{name}.py::test" for name in "abc")
    near = "tests/unit/trace/test_classify.py::test"  # imports the module
    beside = f"{long}_of_what_a_fixture_made"
    calls = {
        **{long: Called(9.0, clip), short: Called(1.0, clip), stranger: Called(0.1, other)},
        **{beside: Called(0.2, other), near: Called(3.0, clip), f"{OWN}::test": Called(5.0, other)},
    }
    close, further = groups_for(ROOT, INTERVALS, line_of_clip(), calls)
    assert close == [f"{OWN}::test", near]
    assert further == [short, long, beside]
    outside_of_all_functions = groups_for(ROOT, INTERVALS, 1, calls)
    assert stranger in outside_of_all_functions[1]


def test_what_is_not_close_has_a_limit_of_time():
    clip = frozenset({f"{INTERVALS}::clip"})
    far = [f"tests/unit/report/test_{name}.py::test" for name in "ab"]
    seconds = dict(zip(far, (1.0, ENOUGH_S - 0.5), strict=True))
    calls = {test: Called(s, clip) for test, s in seconds.items()}
    own = {f"{OWN}::test": Called(2 * ENOUGH_S, clip)}
    assert groups_for(ROOT, INTERVALS, line_of_clip(), calls | own) == [[*own], far[:1]]


@pytest.mark.parametrize("noticed", ["tests/unit/test_a.py::test", IMPORT])
@pytest.mark.parametrize("fails", [True, False])
def test_a_test_that_fails_on_the_unchanged_code_has_noticed_nothing(monkeypatch, noticed, fails):
    tests = ["tests/unit/test_a.py::test", "tests/unit/test_a.py::other"]
    calls = dict.fromkeys(tests, Called(0.1, frozenset()))
    runs = []
    monkeypatch.setattr(
        mutant_tests, "run_tests", lambda *arguments: runs.append(arguments) or "any" * fails
    )
    assert fails_anyway(ROOT, noticed, tests, calls) is fails
    assert runs == [
        (ROOT, tests, calls, "--collect-only") if noticed == IMPORT else (ROOT, tests[:1], calls)
    ]
    assert not fails_anyway(ROOT, TIME_LIMIT, tests, calls)
    assert not fails_anyway(ROOT, "", tests, calls)


def test_a_file_with_a_test_that_fails_is_recorded_by_the_next_call(tmp_path):
    tests = tmp_path / "test_two.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.called_functions", tests]
    environment = os.environ | {"PYTHONPATH": str(ROOT), FOLDER: str(tmp_path)}
    source = "def test_one(): pass\n\ndef test_two(): assert {}\n"
    for mended in (False, True):
        tests.write_text(source.format(mended))
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        assert (ended.returncode == 0) is mended, ended.stdout
        assert file_of(tmp_path, tests).exists() is mended


def test_the_importers_of_a_module_are_found():
    found = importers(ROOT, "scalebench/trace/intervals.py")
    assert "scalebench/trace/classify.py" in found
    assert "scalebench/trace/intervals.py" not in found


def test_what_a_test_calls_is_kept_until_the_test_changes(tmp_path):
    tests = tmp_path / "tests" / "unit" / "test_a.py"
    tests.parent.mkdir(parents=True)
    tests.write_text("one")
    called = {"tests/unit/test_a.py::test": {"cpu_s": 1.5, "functions": ["f", "g"]}}
    file_of(tmp_path, tests).write_text(json.dumps(called))
    found = load_calls(tmp_path, tmp_path)
    assert found == {"tests/unit/test_a.py::test": Called(1.5, frozenset("fg"))}
    tests.write_text("another")
    assert load_calls(tmp_path, tmp_path) == {}


def test_the_interval_of_a_share_is_wilsons():
    """Newcombe 1998, table I, method 3: 81 of 263, and 15 of 148."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)


def test_only_changes_of_what_the_code_does_count(capsys, monkeypatch, tmp_path):
    """The same change of another line is another."""
    (tmp_path / "scalebench" / "gate").mkdir(parents=True)
    (tmp_path / "scalebench" / "gate" / "a.py").write_text("unread = 1\nread = 1\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    kept = Mutant("scalebench/gate/a.py", 1, 9, "1", "(2)")
    lost = Mutant("scalebench/gate/a.py", 2, 18, "1", "(2)")
    assert kept.in_its_line() == "scalebench/gate/a.py  unread = 1  1  →  (2)"
    monkeypatch.setattr(mutants, "equivalents", lambda: {kept.in_its_line(): "nothing reads"})
    seen = ["", "", UNDECIDED, "test_a", "time limit"]
    of = [kept, *[lost] * 4]
    show([asdict(one) | {"noticed_by": by} for one, by in zip(of, seen, strict=True)])
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("nothing reads") and told[1].endswith("CHANGES WHAT THE CODE DOES")
    assert told[3] == "5 drawn, 1 change nothing, 1 undecided"
    assert told[4].split()[:5] == ["all", "2", "of", "3", "noticed,"]


def test_every_change_that_is_listed_as_none_has_its_reason():
    found = mutants.equivalents()
    assert all(change.count("  →  ") == 1 and reason for change, reason in found.items())
    for change in found:
        path, line = change.split("  ")[:2]
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert line in map(str.strip, lines), f"{path} has no such line any more: {line}"
