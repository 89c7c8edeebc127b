"""Races in the gate: a longer time to the loss gates, and so does a target that is not reached."""

from scalebench.records.rows.race import RaceFigures
from scalebench.stats import Estimate
from tests.builders.gated import gated, gated_run, verdict_of, with_row
from tests.examples import cases


def raced(time_s, target=2.5, reached=5, spread=0.01):
    arrival = Estimate(value=time_s, low=time_s * (1 - spread), high=time_s * (1 + spread), n=5)
    return RaceFigures(
        target_loss=target,
        target_from="given",
        baseline=("plain", 1),
        samples=4096,
        num_seeds=5,
        num_reached=reached,
        time_to_target_s=arrival if reached == 5 else None,
    )


def judged(base, new):
    runs = (
        with_row(gated_run(seed=seed), "ddp", 4, race=race) for seed, race in ((1, base), (2, new))
    )
    return verdict_of(gated(*runs), "time_to_target_s", world_size=4)


@cases(
    "base, new, verdict",
    (raced(10), raced(12), "regressed"),
    (raced(12), raced(10), "improved"),
    (raced(10), raced(10.05), "unchanged"),
    (raced(10, spread=0.2), raced(11, spread=0.2), "no change seen"),
)
def test_a_longer_time_to_the_loss_is_a_regression(base, new, verdict):
    found = judged(base, new)
    assert (found.verdict, found.decides) == (verdict, True)
    assert found.low is not None and found.high is not None


@cases(
    "was, is_, verdict, basis",
    (5, 4, "regressed", "single"),
    (4, 5, "improved", "single"),
    (4, 4, "inconclusive", "none"),
    (0, 4, "inconclusive", "none"),
    (4, 0, "inconclusive", "none"),
)
def test_a_target_counts_as_reached_where_every_seed_reaches_it(was, is_, verdict, basis):
    found = judged(raced(10, reached=was), raced(10, reached=is_))
    assert (found.verdict, found.basis) == (verdict, basis)
    if verdict == "regressed":
        assert found.reason == "1 of 5 seeds no longer reach the target"
