import math
from dataclasses import replace

import numpy as np
import pytest

from scalebench.gate import family
from scalebench.gate.family import Pair, judge, paired
from scalebench.gate.observation import measured
from scalebench.gate.result import WORSE, GateResult, RowVerdict
from scalebench.gate.results import Results
from scalebench.session.interleaved.ab_runs import until_decided
from tests.builders.summaries import make_plain, make_row, make_summary
from tests.examples import cases

pytestmark = pytest.mark.slow

OPEN = RowVerdict("s", "ddp", 2, "step_s", "s", "inconclusive", basis="launches")


class InterleavedRuns:
    """Stands for the real ones: each round takes a second, and only notes what it was told.

    ``results()`` gives the number of rounds in place of the base.
    """

    def __init__(self, seconds=1.0, rows=()):
        self.round_s = []
        self.narrowed = []
        self.seconds = seconds
        self.new = Results("new", (make_summary(list(rows)),))

    def measure(self, upto, only=()):
        self.narrowed.append(tuple(only))
        self.round_s.append(self.seconds)

    def results(self):
        return len(self.round_s), self.new


def result(*rows):
    return GateResult("a", "b", "1", "2", tuple(rows))


@cases(
    "budget_s, fewest, rounds, said",
    (1, {}, 5, ["1 row undecided"]),
    (120, {}, 12, ["after 5, 10, 12 rounds", "2 min had passed"]),
    (35, {"fewest": 2}, 3, ["after 3 rounds"]),
)
def test_the_budget_ends_it_but_never_the_first_rounds(budget_s, fewest, rounds, said):
    interleaved = InterleavedRuns(seconds=10.0)
    told = until_decided(interleaved, 5, lambda *_: result(OPEN), budget_s, **fewest)
    assert len(interleaved.round_s) == rounds
    assert [one for one in said if one not in told.notes[-1]] == []


def test_only_what_is_open_is_measured_again():
    """And the plain models on one rank of its suite, which efficiency is formed with."""
    rows = [
        replace(OPEN, case="plain", world_size=1, verdict="unchanged"),
        replace(OPEN, case="ddp", world_size=2, verdict="unchanged"),
        replace(OPEN, case="ddp", world_size=4),
        replace(OPEN, case="ddp", world_size=4, metric="efficiency"),
        replace(OPEN, case="ddp-small", world_size=8, verdict="not worse", no_worse=True),
        replace(OPEN, case="ddp-big", world_size=8, verdict="inconclusive", decides=False),
        replace(OPEN, case="ddp-one", world_size=8, verdict="inconclusive", basis="single"),
        replace(OPEN, suite="other", case="fsdp", world_size=2, verdict="improved"),
    ]
    changes = ({"suite": "s"}, {"suite": "s", "case": "plain-2"}, {"suite": "other"})
    measured_rows = [make_plain().model_copy(update=change) for change in changes]
    measured_rows.append(make_row("ddp", 4).model_copy(update={"suite": "s"}))
    interleaved = InterleavedRuns(rows=measured_rows)
    until_decided(interleaved, 2, lambda *_: result(*rows), 3)
    assert interleaved.narrowed[:2] == [(), ()]
    assert interleaved.narrowed[2] == ("s.ddp.n4", "s.plain.n1", "s.plain-2.n1")


def test_what_one_analysis_decided_no_later_one_takes_back():
    def judged(done, _, level):
        first = "regressed" if done == 2 else "inconclusive"
        second = "inconclusive" if done < 8 else "unchanged"
        return result(replace(OPEN, verdict=first), replace(OPEN, case="b", verdict=second))

    told = until_decided(InterleavedRuns(), 2, judged, 1000)
    assert [row.verdict for row in told.rows] == ["regressed", "unchanged"]


def analysed(halving, wanted, change, floor):
    """Part of 1000 calls that come to a verdict, with rounds of known noise and change."""
    generator = np.random.default_rng(11)
    found = 0
    for _ in range(1000):
        base, new = generator.normal(0, 0.01, (2, 96))
        new = new + change

        def judged(done, _, error_budget, base=base, new=new):
            sides = paired(measured(base[:done]), measured(new[:done]))
            pair = Pair("step_s", *sides, floor=floor, floor_down=floor, shared=True)
            [one] = judge([pair], error_budget if halving else 1.0)
            return result(replace(OPEN, verdict=one.finding))

        found += until_decided(InterleavedRuns(), 3, judged, 96).rows[0].verdict in wanted
    return found / 1000


@cases("halving", True, False)
@cases(
    "wanted, change, floor",
    (WORSE, 0.0, 1e-9),
    (("unchanged", "not worse"), 0.01, 0.01),
    ids=["red though nothing differs", "passes what is as slow as the tolerance"],
)
def test_many_analyses_err_no_more_often_than_one(monkeypatch, wanted, change, floor, halving):
    """At a level of 2 %, so that errors are seen at all."""
    monkeypatch.setattr(family, "TEST_LEVEL", 0.02)
    rate = analysed(halving, wanted, change, floor)
    assert (rate <= 0.02 + 2 * math.sqrt(0.02 * 0.98 / 1000)) == halving, rate
