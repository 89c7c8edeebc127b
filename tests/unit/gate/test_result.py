"""One verdict of all rows, one exit code, one machine interface."""

from dataclasses import replace

from scalebench.errors import ExitCode
from scalebench.gate.result import GateResult, Mismatch, RowVerdict
from tests.examples import cases


def row(verdict, **changes):
    return RowVerdict("ddp", "small", 3, "step_s", "s", verdict, **changes)


def result(*rows, **changes):
    return GateResult("base", "new", "run-1", "run-2", tuple(rows), **changes)


GOOD, SHOWN = row("unchanged"), row("regressed", decides=False)
FAILED = row("missing", failed=True)


@cases(
    "rows, verdict, code",
    ((GOOD,), "passed", ExitCode.OK),
    ((GOOD, row("improved")), "passed", ExitCode.OK),
    ((GOOD, SHOWN), "passed", ExitCode.OK),
    ((SHOWN,), "not comparable", ExitCode.INCONCLUSIVE),
    ((), "not comparable", ExitCode.INCONCLUSIVE),
    ((GOOD, row("inconclusive")), "inconclusive", ExitCode.INCONCLUSIVE),
    ((GOOD, row("no change seen"), row("not worse")), "passed", ExitCode.OK),
    ((GOOD, row("probably regressed")), "regressed", ExitCode.REGRESSION),
    ((GOOD, row("inconclusive", decides=False)), "passed", ExitCode.OK),
    ((row("no change seen"), row("inconclusive")), "inconclusive", ExitCode.INCONCLUSIVE),
    ((GOOD, row("missing")), "not comparable", ExitCode.INCONCLUSIVE),
    ((GOOD, row("not comparable")), "not comparable", ExitCode.INCONCLUSIVE),
    ((row("inconclusive"), row("missing")), "not comparable", ExitCode.INCONCLUSIVE),
    ((row("missing"), FAILED), "failed", ExitCode.CELLS_FAILED),
    ((GOOD, replace(FAILED, decides=False)), "passed", ExitCode.OK),
    ((FAILED, row("regressed")), "regressed", ExitCode.REGRESSION),
)
def test_the_worst_that_holds(rows, verdict, code):
    for order in (rows, rows[::-1]):
        found = result(*order)
        assert (found.verdict, found.exit_code) == (verdict, code)


@cases(
    "verdict, seen, code",
    ("no change seen", 0.031, 3),
    ("no change seen", None, 3),
    ("no change seen", 0.03, 0),
    ("unchanged", 0.5, 0),
    ("probably regressed", 0.5, 1),
)
def test_what_is_needed_has_to_have_been_visible(verdict, seen, code):
    unseen = result(row(verdict, min_detectable=seen), need=0.03)
    assert unseen.exit_code == code
    assert result(*unseen.rows).exit_code == (code if code == 1 else 0)
    assert replace(unseen, let_pass=("inconclusive",)).exit_code == (code if code == 1 else 0)


def test_the_machine_interface_of_a_call():
    mismatch = Mismatch("torch", "1", "2")
    told = result(GOOD, mismatches=(mismatch,), notes=("a note",)).as_json()
    assert list(told)[:4] == ["format", "verdict", "exit_code", "covers"]
    rows = told.pop("rows")
    assert told == {
        "format": "scalebench.gate/1", "verdict": "passed", "exit_code": 0, "covers": None,
        "base": "base", "new": "new", "base_run_id": "run-1", "new_run_id": "run-2",
        "mismatches": (
            {"name": "torch", "base": "1", "new": "2", "where": "", "allowed": False},
        ),
        "notes": ("a note",), "confidence": 0.99, "false_alarm_rate": 0.01,
        "interleaved": False, "need": None, "let_pass": (),
    }  # fmt: skip
    assert len(rows) == 1 and rows[0]["verdict"] == "unchanged"
