"""Frameworks beside the fastest of them, over the rounds that both ran in."""

import math

import pytest

from scalebench.analysis.summarise import summarise
from scalebench.spec import Ddp, DeepSpeed, FairScale, Plain
from tests.builders.runs import make_cell, make_record, make_result, make_run

STRATEGIES = {"plain": Plain(), "ddp": Ddp(), "deepspeed": DeepSpeed(), "fairscale": FairScale()}
FACTS = {"framework": {"versions": {"any": "1.0"}, "untested": [], "settings": {}}}
DRIFT = (1.0, 1.5, 2.0, 1.2)
NOISE = (0.01, -0.01, 0.005, -0.005)


def cell(case, world_size=2, **changes):
    return make_cell(case, world_size, strategy=STRATEGIES[case], suite="frameworks", **changes)


def launches(case, step_s, drift=DRIFT, noise=NOISE, world_size=2):
    """One launch of a case in each round, which is slower by the round's own factor."""
    found = []
    facts = FACTS if case in ("deepspeed", "fairscale") else {}
    for repeat, (slower, off) in enumerate(zip(drift, noise, strict=True)):
        clean = (step_s * slower * math.exp(off),) * 4
        ranks = [make_record(rank, clean, facts=facts) for rank in range(world_size)]
        found.append(make_result(cell(case, world_size, repeat=repeat), ranks=ranks))
    return found


def rows_of(*results):
    summary = summarise(make_run([one for group in results for one in group]))
    return {row.case: row for row in summary.rows}


def test_what_drifts_with_the_rounds_does_not_hide_which_is_slower():
    rows = rows_of(
        launches("ddp", 0.100),
        launches("deepspeed", 0.110, noise=NOISE[::-1]),
        launches("fairscale", 0.101, noise=(0.0, 0.005, -0.01, 0.005)),
    )
    fastest = rows["ddp"].against_fastest
    assert fastest.fastest == ("frameworks", "ddp", 2)
    assert fastest.step_ratio.value == fastest.step_ratio.low == fastest.step_ratio.high == 1
    slower = rows["deepspeed"].against_fastest.step_ratio
    assert slower.value == pytest.approx(1.1, rel=1e-6) and slower.low > 1
    as_fast = rows["fairscale"].against_fastest.step_ratio
    assert as_fast.value == pytest.approx(1.01, rel=1e-6) and as_fast.low < 1
    # Their step times alone would not part them.
    assert rows["deepspeed"].step_s.low < rows["ddp"].step_s.high
