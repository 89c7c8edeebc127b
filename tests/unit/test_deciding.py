"""Rounds until all is decided: what is measured again, how often, and how seldom it cries wolf."""

import math
from dataclasses import replace

import numpy as np
import pytest
from summaries import make_plain, make_row, make_summary

from scalebench.deciding import until_decided
from scalebench.errors import EnvironmentUnfit
from scalebench.verdict import family
from scalebench.verdict.family import Pair, judge, measured, paired
from scalebench.verdict.result import GateResult, RowVerdict
from scalebench.verdict.results import Results

OPEN = RowVerdict("s", "ddp", 2, "step_s", "s", "inconclusive", basis="launches")


class Turns:
    """Stands for the real ones: each round takes a second, and only notes what it was told.

    ``results()`` gives the number of rounds in place of the base.
    """

    def __init__(self, seconds=1.0, rows=(), fails_from=None):
        self.round_s = []
        self.narrowed = []
        self.seconds = seconds
        self.new = Results("new", (make_summary(list(rows)),))
        self.fails_from = fails_from

    def measure(self, upto, narrowed=()):
        if self.fails_from is not None and len(self.round_s) >= self.fails_from:
            raise EnvironmentUnfit("new: scalebench run ended with 5: no room")
        self.narrowed.append(tuple(narrowed))
        self.round_s.append(self.seconds)

    def results(self):
        return len(self.round_s), self.new


def result(*rows):
    return GateResult("a", "b", "1", "2", tuple(rows))


def decided_after(**rounds):
    """Return a judge that finds each case of that name as ``(rounds, verdict)`` says."""

    def judged(done, _, level):
        return result(
            *(
                replace(OPEN, case=case, verdict=verdict if done >= after else "inconclusive")
                for case, (after, verdict) in rounds.items()
            )
        )

    return judged


def test_it_goes_on_until_all_is_decided_and_then_ends():
    turns = Turns()
    told = until_decided(turns, 3, decided_after(ddp=(10, "regressed")), 1000)
    assert len(turns.round_s) == 12
    assert [row.verdict for row in told.rows] == ["regressed"]
    assert (
        told.notes[-1].startswith("3 looks, after 3, 6, 12 rounds")
        and "undecided" not in (told.notes[-1])
    )


def test_what_is_decided_at_once_is_looked_at_once():
    turns = Turns()
    told = until_decided(turns, 4, decided_after(ddp=(0, "unchanged")), 1000)
    assert len(turns.round_s) == 4 and told.notes[-1].startswith("1 look, after 4 rounds")


def test_the_budget_ends_it_but_never_the_first_rounds():
    turns = Turns(seconds=10.0)
    told = until_decided(turns, 5, decided_after(ddp=(99, "regressed")), 1)
    assert len(turns.round_s) == 5 and "1 row undecided" in told.notes[-1]
    turns = Turns(seconds=10.0)
    told = until_decided(turns, 5, decided_after(ddp=(99, "regressed")), 120)
    assert len(turns.round_s) == 12 and "after 5, 10, 12 rounds" in told.notes[-1]
    assert "2 min were over" in told.notes[-1]


def test_only_what_is_open_is_measured_again():
    """And the plain models on one rank of its suite, which efficiency is formed with."""
    rows = [
        replace(OPEN, case="plain", world_size=1, verdict="unchanged"),
        replace(OPEN, case="ddp", world_size=2, verdict="unchanged"),
        replace(OPEN, case="ddp", world_size=4),
        replace(OPEN, case="ddp", world_size=4, metric="efficiency"),
        replace(OPEN, case="ddp-small", world_size=8, verdict="inconclusive", no_worse=True),
        replace(OPEN, case="ddp-big", world_size=8, verdict="inconclusive", decides=False),
        replace(OPEN, case="ddp-one", world_size=8, verdict="inconclusive", basis="single"),
        replace(OPEN, suite="other", case="fsdp", world_size=2, verdict="improved"),
    ]
    plain = make_plain()
    measured_rows = [
        plain.model_copy(update={"suite": "s"}),
        plain.model_copy(update={"suite": "s", "case": "plain-2"}),
        plain.model_copy(update={"suite": "other"}),
        make_row("ddp", 4).model_copy(update={"suite": "s"}),
    ]
    turns = Turns(rows=measured_rows)
    until_decided(turns, 2, lambda *_: result(*rows), 3)
    assert turns.narrowed[:2] == [(), ()]
    assert turns.narrowed[2] == (
        *("--only", "s.ddp.n4", "--only", "s.plain.n1", "--only", "s.plain-2.n1"),
    )


@pytest.mark.parametrize("decided", ["unchanged", "regressed"])
def test_a_row_that_fails_later_has_not_passed(decided):
    """Its step was decided; its efficiency was open, and is not there any more."""

    def judged(done, _, share):
        if done == 2:
            return result(replace(OPEN, verdict=decided), replace(OPEN, metric="efficiency"))
        return result(replace(OPEN, verdict="missing", failed=True, basis="none"))

    told = until_decided(Turns(), 2, judged, 1000)
    assert told.verdict == ("failed" if decided == "unchanged" else "regressed")
    assert told.exit_code == (4 if decided == "unchanged" else 1)


def test_a_round_that_cannot_be_made_ends_it_and_loses_nothing():
    judge = decided_after(ddp=(2, "regressed"), other=(99, "unchanged"))
    told = until_decided(Turns(fails_from=3), 2, judge, 1000)
    assert [row.verdict for row in told.rows] == ["regressed", "inconclusive"]
    assert "after 2, 3 rounds" in told.notes[-1] and "no room" in told.notes[-1]
    with pytest.raises(EnvironmentUnfit):
        until_decided(Turns(fails_from=1), 2, judge, 1000)


def test_what_one_look_decided_no_later_one_takes_back():
    def judged(done, _, level):
        first = "regressed" if done == 2 else "inconclusive"
        second = "inconclusive" if done < 8 else "unchanged"
        return result(replace(OPEN, verdict=first), replace(OPEN, case="b", verdict=second))

    told = until_decided(Turns(), 2, judged, 1000)
    assert [row.verdict for row in told.rows] == ["regressed", "unchanged"]


def test_each_look_may_err_half_as_often_as_the_one_before():
    shares = []

    def judged(done, _, share):
        shares.append(share)
        return result(OPEN)

    until_decided(Turns(), 1, judged, 8)
    assert shares == [1 / 2, 1 / 4, 1 / 8, 1 / 16]


def looked_at(halving, wanted, change, floor):
    """Part of 1000 calls that come to a verdict, with rounds of known noise and change."""
    generator = np.random.default_rng(11)
    found = 0
    for _ in range(1000):
        base, new = generator.normal(0, 0.01, (2, 96))
        new = new + change

        def judged(done, _, share, base=base, new=new):
            sides = paired(measured(base[:done]), measured(new[:done]))
            pair = Pair("step_s", *sides, floor=floor, floor_down=floor, shared=True)
            [one] = judge([pair], share if halving else 1.0)
            return result(replace(OPEN, verdict=one.finding))

        found += until_decided(Turns(), 3, judged, 96).rows[0].verdict == wanted
    return found / 1000


def upper(rate):
    """Two standard errors above a rate in 1000 calls."""
    return rate + 2 * math.sqrt(rate * (1 - rate) / 1000)


@pytest.mark.parametrize("halving", [True, False])
def test_many_looks_cry_wolf_no_more_often_than_one(monkeypatch, halving):
    """Nothing differs; a level of 2 %, so that wolves are seen at all."""
    monkeypatch.setattr(family, "TEST_LEVEL", 0.02)
    rate = looked_at(halving, "regressed", change=0.0, floor=1e-9)
    assert (rate <= upper(0.02)) == halving, rate


@pytest.mark.parametrize("halving", [True, False])
def test_many_looks_pass_no_more_of_what_is_at_the_floor_than_one(halving):
    """A change as large as the floor is called unchanged by one look at most 2.5 times in 100."""
    rate = looked_at(halving, "unchanged", change=0.01, floor=0.01)
    assert (rate <= upper(0.025)) == halving, rate
