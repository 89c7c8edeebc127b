"""What is certain at any noise is told first: in the terminal, on the overview, in what to try."""

import pytest

from scalebench.records.rows.communication import OperationFigures, Straggler
from scalebench.records.rows.rank_excess import RankExcess
from scalebench.records.rows.script import HostWaitPlace, HostWaits, ScriptFacts, Wrapper
from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.advice import advise
from scalebench.report.findings.certain import certain
from scalebench.report.findings.findings import judge
from scalebench.report.findings.next_steps import next_steps
from scalebench.report.words import wording
from tests.builders.summaries import attributed, estimate, make_plain, make_row, make_summary

NOISY = {"efficiency": 0.8, "spread": 0.6}
PARAMETERS = 4_000_000


def noisy(**changes):
    """A row of which nothing is known but what ``changes`` says."""
    losses = {"wait": 15.0}
    fields = {"stragglers": [], "num_parameters": PARAMETERS, **changes}
    return attributed(make_row(**NOISY), losses=losses, doubtful=["wait"], **fields)


def ddp(**settings):
    settings = {"bucket_bytes": 25 * 2**20, "find_unused_parameters": False, **settings}
    return [Wrapper(kind="DistributedDataParallel", **settings)]


def sent(count, times=1, exposed_s=0.004):
    """All-reduces of a step that send the gradients so often."""
    figures = {"total_s": exposed_s, "exposed_s": exposed_s, "hidden_s": 0.0}
    operations = OperationFigures(
        kind="all_reduce",
        ordinal=None,
        phase="backward",
        count=count,
        num_bytes=4 * PARAMETERS * times,
        **figures,
    )
    return {"communication": [operations], "exposed_comm_s": estimate(exposed_s, 0.0, 1)}


def excess(part, own_s=0.035, others_s=0.0006, **counts):
    times = {"own_s": own_s, "others_s": others_s, "num_blocks": 48, "num_longer": 47, **counts}
    return {
        "rank_excess": [RankExcess(part=part, rank=1, **times)],
        "stragglers": [
            Straggler(rank=1, count=92, share=0.92, median_late_s=0.0208, longest_run=40)
        ],
    }


def waits(seconds):
    place = HostWaitPlace(file="train.py", line=37, call=".item()", calls=8)
    found = HostWaits(per_step=1.0, steps=8, places=[place], seconds_per_step=seconds)
    return {"script": ScriptFacts(host_waits=found)}


def accumulated(passes, **facts):
    return {"script": ScriptFacts(backwards_per_step=passes, **facts)}


SAYS = {
    "slow loader": (
        noisy(**excess("data_stall")),
        "rank 1 is the slow one (last to enter 92 % of operations, 20.8 ms late): its data loading"
        " takes 35.0 ms a step, on the others 600 µs (longer in 47 of 48 blocks of steps)",
        "Look at the loader of rank 1: its data loading takes 35.0 ms a step, on the others 600 µs",
    ),
    "slow rank": (
        noisy(**excess("compute", 0.04, 0.02)),
        "rank 1 is the slow one (last to enter 92 % of operations, 20.8 ms late): its computation"
        " takes",
        "Look at rank 1: its computation takes 40.0 ms a step, on the others 20.0 ms",
    ),
    "late rank": (
        noisy(**excess("lateness", 0.02, 0.001)),
        "rank 1 is the slow one (last to enter 92 % of operations, 20.8 ms late): the others wait",
        "See what rank 1 does (py-spy dump or record): the others"
        " wait 20.0 ms a step for it, it waits 1.00 ms for them",
    ),
    "late in two steps": (
        noisy(**excess("lateness", 0.02, 0.0, num_blocks=2, num_longer=2, certain=False)),
        "rank 1 is probably the slow one: the others wait 20.0 ms a step for it, it waits 0 ns for"
        " them (in all 2 traced steps, which are too few to be certain)",
        "See what rank 1 does (py-spy dump or record): the others"
        " wait 20.0 ms a step for it, it waits 0 ns for them",
    ),
    "too few workers": (
        noisy(script=ScriptFacts(batch_wait_s=0.006, loader={"num_workers": 0})),
        "every rank waits for its batches, 6.00 ms of the",
        "Give the loader more workers than num_workers=0: data takes 6.00 ms of the 22.5 ms step",
    ),
    "accumulation": (
        noisy(wrappers=ddp(), **sent(8, 4), **accumulated(4.0)),
        "each of the 4 backward passes of a step sends the gradients: 64.0 MB a step instead of"
        " 16.0 MB, which costs up to 3.00 ms",
        "Run all passes but the last under model.no_sync(): 4 sends a step, 1 would do",
    ),
    "small buckets": (
        noisy(wrappers=ddp(bucket_bytes=2**20), **sent(16)),
        "DDP sends its gradients of 16.0 MB in 16 operations a step",
        "Try bucket_cap_mb=25: 16 operations a step, not 2",
    ),
    "unused search": (
        noisy(
            wrappers=ddp(find_unused_parameters=True, unused_bytes=0),
            script=ScriptFacts(unused_search_s=2e-3),
        ),
        "DDP searches for unused parameters and finds none: the search takes 2.00 ms of a step",
        "Leave out find_unused_parameters=True: the search takes 2.00 ms of a step",
    ),
    "host waits": (
        noisy(device="cuda", **waits(0.004)),
        "1 call a step has the host wait for the GPU; the first is .item() in train.py:37: 4.00",
        "Call .item() less often (train.py:37): 1 a step, 4.00 ms of a step",
    ),
    "host waits on CPU": (
        noisy(**waits(2e-6)),
        "1 call a step has the host read a tensor, for which a GPU waits; the first is .item()",
        "Call .item() less often (train.py:37): 1 a step, 2.00 µs of a step",
    ),
}


@pytest.mark.parametrize("name", SAYS)
def test_it_is_told_first_everywhere(name):
    row, sentence, step = SAYS[name]
    found = certain(row)
    assert found and found[0].sentence.startswith(sentence)
    told = advise(row)
    assert told is not None and told.next_step == step
    rows = [make_plain(suite=row.suite), row]
    summary = make_summary(rows)
    (first, *_) = next_steps(judge(summary).suites, wording.by_suite(rows))
    assert first.action == step
    for text in (
        render_table(summary, width=400),
        render_markdown(summary),
        render_page([summary]),
    ):
        flat = " ".join(text.replace("&#39;", "'").split())
        assert sentence[1:] in flat and "Quiet the machine and run" not in flat
    assert f"→ {step}" in " ".join(render_table(summary, width=400).split())


SILENT = {
    "accumulation under no_sync": noisy(wrappers=ddp(), **sent(2), **accumulated(4.0)),
    "a GAN": noisy(wrappers=ddp(), **sent(4, 2), **accumulated(2.0, calls_per_step=2)),
    "a hook": noisy(wrappers=ddp(hook="fp16"), **sent(8, 4), **accumulated(4.0)),
    "few buckets": noisy(wrappers=ddp(bucket_bytes=8 * 2**20), **sent(3)),
    "hidden buckets": noisy(wrappers=ddp(bucket_bytes=2**20), **sent(16, exposed_s=1e-6)),
    "the search finds some": noisy(
        wrappers=ddp(find_unused_parameters=True, unused_bytes=400),
        script=ScriptFacts(unused_search_s=2e-3),
    ),
    "late in two steps beside other programs": noisy(
        **excess("lateness", 0.02, 0.0, num_blocks=2, num_longer=2, certain=False),
        stamps=["foreign load: x"],
    ),
    "one rank": make_row(world_size=1).model_copy(update=waits(0.004)),
    "an older record": noisy(**waits(None)),
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_told(name):
    assert certain(SILENT[name]) == []


def test_the_largest_is_first_and_explains_its_part_of_the_budget():
    sure = {**NOISY, "spread": 0.02}
    row = attributed(
        make_row(**sure),
        losses={"wait": 12.0, "other_idle": 8.0},
        **excess("data_stall", 0.004, 0.0),
        wrappers=ddp(find_unused_parameters=True, unused_bytes=0),
        script=ScriptFacts(unused_search_s=2e-4),
    )
    rows = [make_plain(suite=row.suite), row]
    found = next_steps(judge(make_summary(rows)).suites, wording.by_suite(rows))
    assert [step.cause for step in found] == [
        "rank 1",
        "idle",
        "search for unused parameters",
    ]


def with_loader(wait_s, world_size=2, **fields):
    facts = ScriptFacts(batch_wait_s=wait_s, loader={"num_workers": 4})
    return make_row("script", world_size=world_size, script=facts, **fields)


@pytest.mark.parametrize(("alone_s", "costs_speed"), [(0.009, True), (0.001, False)])
def test_a_loader_that_one_rank_waits_for_as_long_costs_speed_and_names_no_rank(
    alone_s, costs_speed
):
    late = excess("data_stall", 0.010, 0.004)
    row, alone = with_loader(0.004, **late), with_loader(alone_s, world_size=1)
    told = [one.sentence for one in certain(row, [alone, row])]
    assert ("costs speed, not scaling" in told[0]) == costs_speed
    assert any("rank 1 is the slow one" in one for one in told) != costs_speed


def test_beside_other_programs_the_next_step_is_to_stop_them():
    told = advise(noisy(stamps=["foreign load: 1.4 processors"]))
    assert told is not None and told.action.startswith("Stop the other programs")


def test_no_cause_is_named_is_not_said_beside_one_that_is():
    row = noisy(**excess("data_stall"))
    row = row.model_copy(update={"budget": row.budget.model_copy(update={"closes": False})})
    summary = make_summary([make_plain(), row])
    assert "rank 1, up to 20.0 % of the step" in render_table(summary)
    assert "o other cause is named" in str(judge(summary))
    for text in (render_table(summary), str(judge(summary))):
        assert "o cause is named" not in text
