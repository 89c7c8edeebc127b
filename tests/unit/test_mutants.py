"""The places that ``benchmarks/mutants.py`` changes, and what it runs."""

import ast

import pytest

from benchmarks.mutants import ROOT, USERS, draw
from benchmarks.mutants import tests_of as files_for
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
    mutants = draw(list(USERS), 10_000, seed=1)
    assert len({*mutants}) == len(mutants) > 3_000
    for mutant in mutants[:300]:
        source = (ROOT / mutant.path).read_bytes()
        end = mutant.begin + len(mutant.before.encode())
        assert source[mutant.begin : end].decode() == mutant.before
        changed = source[: mutant.begin] + mutant.after.encode() + source[end:]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert draw(["gate"], 5, seed=2) == draw(["gate"], 5, seed=2) != draw(["gate"], 5, seed=3)


def test_a_modules_own_tests_come_first():
    tests = files_for(ROOT, "scalebench/trace/reading.py")
    assert tests[0] == "tests/unit/trace/test_reading.py"
    assert len(tests) == len({*tests}) == len(list((ROOT / "tests/unit/trace").glob("test_*.py")))
    assert all((ROOT / path).exists() for paths in USERS.values() for path in paths)
