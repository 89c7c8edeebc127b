"""Rounds until all is decided: what is measured again, how often, and how seldom it cries wolf."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scalebench import deciding
from scalebench.deciding import until_decided
from scalebench.selection import matches, words
from scalebench.verdict.change import TEST_LEVEL
from scalebench.verdict.family import Pair, judge, measured, paired
from scalebench.verdict.result import GateResult, RowVerdict

OPEN = RowVerdict("s", "ddp", 2, "step_s", "s", "inconclusive", basis="launches")


class Turns:
    """Stands for the real ones: each round takes a second, and only notes what it was told."""

    def __init__(self, seconds=1.0, arguments=()):
        self.arguments = arguments
        self.round_s = []
        self.narrowed = []
        self.seconds = seconds

    def measure(self, upto, narrowed=()):
        self.narrowed.append(tuple(narrowed))
        self.round_s.append(self.seconds)

    def results(self):
        return len(self.round_s), None


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


DECIDED_AND_OPEN = (
    replace(OPEN, case="plain", world_size=1, verdict="unchanged"),
    replace(OPEN, case="ddp", world_size=2, verdict="unchanged"),
    replace(OPEN, case="ddp", world_size=4),
    replace(OPEN, case="ddp-small", world_size=8, verdict="inconclusive", no_worse=True),
    replace(OPEN, case="ddp-big", world_size=8, verdict="inconclusive", decides=False),
    replace(OPEN, suite="other", case="fsdp", world_size=2, verdict="improved"),
)


def test_only_what_is_open_is_measured_again():
    """Beside it the plain model at one rank, which efficiency is formed with."""
    turns = Turns()
    until_decided(turns, 2, lambda *_: result(*DECIDED_AND_OPEN), 3)
    assert turns.narrowed[:2] == [(), ()]
    gpus, sizes, k, chosen = turns.narrowed[2]
    assert (gpus, sizes, k) == ("--gpus", "1,4", "-k")
    cases = ("plain", "ddp", "ddp-small", "ddp-big", "fsdp")
    assert [case for case in cases if matches(chosen, case)] == ["plain", "ddp", "fsdp"]


@pytest.mark.parametrize(
    "arguments", [("ddp", "-k", "ddp or optional"), ("-kddp or optional", "--gpus", "1,2")]
)
def test_what_the_user_left_out_stays_out(arguments):
    turns = Turns(arguments=arguments)
    until_decided(turns, 2, lambda *_: result(*DECIDED_AND_OPEN), 3)
    chosen = turns.narrowed[2][3]
    assert [c for c in ("ddp", "ddp-small", "zero1", "fsdp") if matches(chosen, c)] == ["ddp"]
    assert "optional" in words(chosen)  # an optional case has to be named by a word of its own


def test_what_one_look_decided_no_later_one_takes_back():
    def judged(done, _, level):
        first = "regressed" if done == 2 else "inconclusive"
        second = "inconclusive" if done < 8 else "unchanged"
        return result(replace(OPEN, verdict=first), replace(OPEN, case="b", verdict=second))

    told = until_decided(Turns(), 2, judged, 1000)
    assert [row.verdict for row in told.rows] == ["regressed", "unchanged"]


def test_each_look_has_half_the_level_of_the_one_before():
    levels = []

    def judged(done, _, level):
        levels.append(level)
        return result(OPEN)

    until_decided(Turns(), 1, judged, 8)
    assert levels == [TEST_LEVEL / 2, TEST_LEVEL / 4, TEST_LEVEL / 8, TEST_LEVEL / 16]
    assert sum(levels) < TEST_LEVEL


@pytest.mark.parametrize("halving", [True, False])
def test_many_looks_cry_wolf_no_more_often_than_one(monkeypatch, halving):
    """Rounds in which nothing differs, at a level of 2 % so that wolves are seen at all."""
    level = 0.02
    monkeypatch.setattr(deciding, "TEST_LEVEL", level)
    generator = np.random.default_rng(11)
    false_alarms = 0
    for _ in range(1000):
        base, new = generator.normal(0, 0.01, (2, 96))

        def judged(done, _, of_look, base=base, new=new):
            sides = paired(measured(base[:done]), measured(new[:done]))
            pair = Pair("step_s", *sides, floor=1e-9, floor_down=1e-9, shared=True)
            [found] = judge([pair], of_look if halving else level)
            return result(replace(OPEN, verdict=found.finding))

        told = until_decided(Turns(), 3, judged, 96)
        false_alarms += told.rows[0].verdict == "regressed"
    bound = level + 2 * math.sqrt(level * (1 - level) / 1000)
    assert (false_alarms / 1000 <= bound) == halving, false_alarms
