"""Rows of users' scripts: the batch that was counted, the baseline, time outside of the steps."""

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.summarise import summarise
from scalebench.records.rank import StepGap
from scalebench.records.run import CellResult
from scalebench.report.table import render_table
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.checks.data import Fed
from tests.builders.runs import make_cell, make_record, make_result, make_run

TARGET = ScriptTarget(name="train", program="train.py")


def cell(n: int, **changes):
    fields = {"workload": TARGET, "scaling": "weak", "global_batch": n, "rank_batch": 1}
    return make_cell("script", n, strategy=Script(), backend=None, **fields | changes)


def result(n: int, step_s: float, cell_changes=None, **of_rank) -> CellResult:
    fields = {"samples_per_step": 16.0, "gaps": [], "loss": [], "facts": {"backend": "gloo"}}
    ranks = [make_record(rank, (step_s,) * 4, **fields | of_rank) for rank in range(n)]
    made = make_result(cell(n, **cell_changes or {}), step_s)
    return made.model_copy(update={"ranks": ranks})


def rows(*results: CellResult):
    summary = summarise(make_run(results))
    return {row.world_size: row for row in summary.rows}, summary


def test_steps_of_different_numbers_of_optimizer_calls_have_no_ratio():
    facts = [{"backend": "gloo", "calls_per_step": calls} for calls in (2, 11)]
    found, _ = rows(result(1, 0.1, facts=facts[0]), result(2, 0.125, facts=facts[1]))
    assert found[2].speedup is None and found[2].efficiency is None
    told = "a step is 11 optimizer calls here and 2 in the baseline: call scalebench.step()"
    assert told in found[2].unavailable["speedup"] and told in found[2].unavailable["efficiency"]
    alike, _ = rows(result(1, 0.1, facts=facts[0]), result(2, 0.125, facts=facts[0]))
    assert alike[2].speedup.value == pytest.approx(1.6)


def test_a_script_that_divides_its_batch_itself_is_strong_scaling():
    found, _ = rows(result(1, 0.1, samples_per_step=32.0), result(2, 0.0625, samples_per_step=16.0))
    assert {row.scaling for row in found.values()} == {"strong"}
    assert (found[2].global_batch, found[2].rank_batch) == (32, 16)
    assert found[2].efficiency.value == pytest.approx(0.8)
    assert {row.scaling for row in rows(result(1, 0.1), result(2, 0.1))[0].values()} == {"weak"}


def uncounted(facts_1, facts_2):
    """Rows of steps of 0.1 and 0.0625 s whose samples are not known."""
    of_rank = {"samples_per_step": None}
    return rows(
        result(1, 0.1, facts={"backend": "gloo", **facts_1}, **of_rank),
        result(2, 0.0625, facts={"backend": "gloo", **facts_2}, **of_rank),
    )


def test_without_samples_throughput_is_in_steps_and_says_so():
    found, summary = uncounted({"input_elements": 64}, {"input_elements": 64})
    assert found[2].throughput.value == pytest.approx(16.0)
    assert found[2].scaling == "weak"
    assert found[2].efficiency.value == pytest.approx(1.6)
    assert "samples not counted" in found[2].stamps
    table = render_table(summary, width=140)
    assert "16.0 steps" in table and "batch per rank not counted" in table


def test_where_nothing_tells_the_scaling_there_is_no_ratio_and_it_is_asked_for():
    found, summary = uncounted({"backwards_per_step": 1.0}, {"backwards_per_step": 1.0})
    assert {row.scaling for row in found.values()} == {"unknown"}
    two = found[2]
    assert [two.speedup, two.efficiency, two.efficiency_wrapped, two.budget] == [None] * 4
    assert "--scaling" in two.unavailable["efficiency"]
    table = " ".join(render_table(summary, width=140).split())
    assert "strong or weak scaling not known" in table
    assert "efficiency unknown: give --scaling or --samples-per-step" in table


def test_gaps_say_what_was_done_in_them():
    gaps = [
        StepGap(step=2, seconds=2.0, evaluation_s=1.5, checkpoint_s=0.25),
        StepGap(step=3, seconds=1.0, evaluation_s=0.0, checkpoint_s=0.75),
        StepGap(step=4, seconds=0.5, evaluation_s=0.0, checkpoint_s=0.0),
    ]
    _, summary = rows(result(1, 0.1), result(2, 0.125, gaps=gaps))
    table = " ".join(render_table(summary, width=240).split())
    assert "in 2 gaps (evaluation 1.50 s, checkpoints 1.00 s)" in table
    assert "1.75 s before step 2 (rank 0, evaluation)" in table


def test_a_script_that_was_killed_at_its_end_is_marked():
    killed = {"facts": {"backend": "gloo", "killed_at_end": True}}
    found, summary = rows(result(1, 0.1), result(2, 0.125, **killed))
    assert "killed at its end: ranks 0, 1" in found[2].stamps
    assert not any("killed" in stamp for stamp in found[1].stamps)
    assert "killed at its end" in " ".join(render_table(summary, 120).split())


@pytest.mark.parametrize(
    ("kinds", "root"),
    [
        (["DistributedDataParallel"], 0),
        (["DistributedDataParallel", "ZeroRedundancyOptimizer"], "in turn"),
        (["FSDPModule"], None),
        ([], None),
    ],
)
def test_from_which_rank_a_scripts_broadcasts_come(kinds, root):
    found = {"wrappers": [{"kind": kind} for kind in kinds]}
    assert LaunchAttribution(result(2, 0.1, facts=found)).broadcast_root == root


NOTED = {
    "held": [], "moments": [], "replicas_unavailable": "not looked at", "broadcasts": False,
    "states": [], "losses": [], "passes": [], "gradient": [None, None], "rates": [],
}  # fmt: skip


def part_shared(*samplers):
    """Return the part of samples that ranks share, each trained on ten batches of four."""
    data = torch.arange(120.0).reshape(-1, 1)
    facts = {"backend": "gloo", "groups": [], "wrappers": [{"kind": "DistributedDataParallel"}]}
    ranks = []
    for rank, sampler in enumerate(samplers):
        fed = Fed()
        fed.begins(sampler)
        for batch in islice(DataLoader(data, 4, sampler=sampler), 10):
            fed.trained_on(fed.prints_of([batch], len(batch)))
        known = facts | {"checks": NOTED | fed.noted() | {"took_s": 0.001 * rank}}
        ranks.append(make_record(rank, (0.1,) * 4, loss=[], gaps=[], facts=known))
    made = make_result(cell(len(samplers)), 0.1).model_copy(update={"ranks": ranks})
    checks = rows(made)[0][len(samplers)].script.checks
    assert checks.took_ratio == pytest.approx(0.001 * rank / sum(ranks[0].step_s))
    return checks.shared_samples


def drawn(rank, replacement=False, data=range(120)):
    return RandomSampler(data, replacement, generator=torch.Generator().manual_seed(rank))


def distributed(rank, num_replicas, data=range(120)):
    return DistributedSampler(data, num_replicas, rank)


def test_ranks_that_train_partly_on_the_same_samples_are_told_from_those_that_are_right():
    assert part_shared(*(distributed(rank, 4) for rank in range(4))) == 0
    padded = [distributed(rank, 4, range(117)) for rank in range(4)]
    assert part_shared(*padded) == 0, "the last samples of an epoch fill up the last batch"
    assert part_shared(*(distributed(rank % 2, 2) for rank in range(4))) == 1
    assert part_shared(distributed(0, 3), distributed(0, 3), distributed(1, 3)) == pytest.approx(
        2 / 3
    )
    assert 0.1 < part_shared(*(drawn(rank) for rank in range(2))) < 0.5
    assert part_shared(*(drawn(rank, replacement=True) for rank in range(2))) is None
