import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.counted_batch import Growth, growth_of, with_counted_batch, work_of_step
from scalebench.analysis.shapes import NoShape, shape_among_ranks
from scalebench.analysis.summarise import summarise
from scalebench.report import render_table
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_result, make_run
from tests.builders.tracing.traced import make_operation, make_trace, make_traced_record
from tests.examples import cases

TARGET = ScriptTarget(name="train", program="train.py")


def cell(n, **changes):
    fields = {"workload": TARGET, "scaling": "weak", "global_batch": n, "rank_batch": 1}
    return make_cell("script", n, strategy=Script(), backend=None, **fields | changes)


def result(n, step_s, cell_changes=None, **of_rank):
    fields = {"samples_per_step": 16.0, "gaps": [], "loss": [], "facts": {"backend": "gloo"}}
    ranks = [make_record(rank, (step_s,) * 4, **fields | of_rank) for rank in range(n)]
    made = make_result(cell(n, **cell_changes or {}), step_s)
    return made.model_copy(update={"ranks": ranks})


def rows(*results):
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


def test_where_nothing_tells_the_scaling_there_is_no_ratio_and_it_is_asked_for():
    of_rank = {"samples_per_step": None, "facts": {"backend": "gloo", "backwards_per_step": 1.0}}
    found, summary = rows(result(1, 0.1, **of_rank), result(2, 0.0625, **of_rank))
    assert {row.scaling for row in found.values()} == {"unknown"}
    two = found[2]
    assert [two.speedup, two.efficiency, two.efficiency_wrapped, two.budget] == [None] * 4
    assert "--scaling" in two.unavailable["efficiency"]
    table = " ".join(render_table(summary, width=140).split())
    assert "strong or weak scaling not known" in table
    assert "efficiency unknown: give --scaling or --samples-per-step" in table


DDP = {"kind": "DistributedDataParallel"}
ROWS = {"kind": "DTensor", "mesh": {"dim 0": 2}, "placements": ["Shard(dim=1)"]}


def fed(*given, losses=(2.0, 1.5), batches=()):
    """What the watch notes of a rank that looked at nothing but its data."""
    losses = [[step, loss] for step, loss in enumerate(losses)]
    data = {"given": list(given), "losses": losses, "batches": list(batches)}
    names = ("passes", "prints", "states", "rates", "repeated_orders", "moments")
    nothing = {name: [] for name in names} | {"repeated": 0, "distinct": 0}
    return {"replicas_unavailable": "not looked at"} | nothing | data


@cases(
    "ranks, wrapper, same",
    ((fed(3, 4), fed(3, 4)), DDP, True),
    ((fed(3, 4), fed(3, 4, losses=(2.0, 1.5, 1.0))), DDP, True),
    ((fed(3, 3), fed(3, 3)), DDP, None),  # one batch, as benchmarks have
    ((fed(3, 4), fed(3, 5)), DDP, None),
    ((fed(3, 4), fed(3, 4, losses=(2.0, 1.6))), DDP, None),  # more goes in than is seen
    ((fed(3, 4, losses=()), fed(3, 4, losses=())), DDP, None),
    ((fed(3, 4, losses=(None, None)),) * 2, DDP, None),
    ((fed(0, 0), fed(0, 0)), DDP, None),  # on a GPU
    ((fed(3), fed(3)), DDP, None),
    ((fed(3, 4), fed(3, 4)), ROWS, None),  # layers are divided
    ((fed(batches=[1, 2, 3]),) * 2, DDP, True),
    ((fed(batches=[1, 2, 3]),) * 2, ROWS, None),
    ((fed(batches=[1, 2, 3]),) * 2, {"kind": "FSDPModule", "data_ranks": 1}, None),
    ((fed(3, 4, batches=[1, 2, 3]), fed(3, 4, batches=[1, 2, 5])), DDP, False),
)
def test_ranks_that_are_given_the_same_do_the_work_of_one(ranks, wrapper, same):
    wrappers = [wrapper, *([ROWS] if wrapper["kind"] == "FSDPModule" else [])]
    two = result(2, 0.1)
    facts = {"backend": "gloo", "groups": [], "wrappers": wrappers}
    looked_at = [
        rank.model_copy(update={"facts": facts | {"checks": one}})
        for rank, one in zip(two.ranks, ranks, strict=True)
    ]
    found, _ = rows(result(1, 0.1), two.model_copy(update={"ranks": looked_at}))
    assert found[2].script.checks.same_batches is same


@cases(
    "others, why",
    *(((), "the script was not run at N=1"), ((1,), "no launch of the script at N=1 succeeded")),
)
def test_a_script_without_its_base_says_so_in_its_own_words(others, why):
    failed = [result(n, 0.1).model_copy(update={"status": "failed", "ranks": []}) for n in others]
    found, _ = rows(*failed, result(2, 0.1), result(4, 0.1))
    assert found[4].unavailable["efficiency"] == why


def counting(*samples, workload=TARGET, facts=None, **changes):
    """A launch planned with a batch of 1 for each rank; what each rank counted in a step."""
    fields = {"strategy": Script(), "workload": workload, "backend": None, **changes}
    size = max(len(samples), 1)
    cell = make_cell("script", size, global_batch=size, rank_batch=1, **fields)
    ranks = [
        make_record(rank, samples_per_step=one, facts=facts or {})
        for rank, one in enumerate(samples)
    ]
    return make_result(cell, ranks=ranks)


def batch(result):
    cell = with_counted_batch(result).cell
    return cell.global_batch, cell.rank_batch


def test_the_batch_is_the_sum_over_the_ranks_and_a_ranks_their_mean():
    assert batch(counting(16.0, 16.0, 16.0)) == (48, 16)
    assert batch(counting(16.0, 15.0, 12.0)) == (43, 14)  # 43 / 3 = 14.33
    assert batch(counting(15.9, 16.3)) == (32, 16)
    assert batch(counting(0.6)) == (1, 1)


def grows(**by_size):
    """How the work grows; by N what each rank has: samples, or facts."""
    results = []
    for size, each in by_size.items():
        n = int(size[1:])
        samples, facts = (None, each) if isinstance(each, dict) else (each, {})
        results.append(counting(*[samples] * n, facts=facts, scaling="weak"))
    cell = counting(scaling="weak").cell
    return growth_of(cell, [with_counted_batch(result) for result in results])


def tensor(ranks, *placements, data_ranks=None):
    """Facts of parameters on a mesh of so many ranks; with FSDP2 over some of them."""
    layout = {"kind": "DTensor", "mesh": {"tp": ranks}, "placements": list(placements)}
    fsdp = [{"kind": "FSDPModule", "data_ranks": data_ranks}] if data_ranks else []
    return {"wrappers": [*fsdp, layout]}


ROWWISE = ("Shard(dim=1)",)


def pipeline(*stages, of, more=()):
    """Facts of a rank that holds some stages of a pipeline."""
    held = [{"kind": "_PipelineStageBase", "stage": stage, "of": of} for stage in stages]
    return {"wrappers": [*more, *held]}


@cases(
    "facts, samples",
    (tensor(4, "Shard(dim=0)", *ROWWISE), 16),
    (tensor(4, *ROWWISE, data_ranks=2), 32),
    (tensor(4, "Shard(dim=0)", data_ranks=4), 64),
    (pipeline(0, of=4), 16),
    (pipeline(0, 4, of=8), 16),  # interleaved
    (pipeline(0, of=2, more=[{"kind": "DistributedDataParallel"}]), 32),
    (pipeline(0, of=2, more=tensor(2, *ROWWISE)["wrappers"]), 16),
    (pipeline(0, of=2, more=tensor(2, "Shard(dim=0)", data_ranks=2)["wrappers"]), 32),
    ({**tensor(4, *ROWWISE), "steps_by": "scalebench.step()"}, 64),
    ({"wrappers": [{"kind": "DistributedDataParallel"}]}, 64),
)
def test_samples_that_ranks_of_a_group_all_load_count_once(facts, samples):
    result = counting(*[16.0] * 4, facts=facts)
    assert with_counted_batch(result).cell.global_batch == samples
    assert work_of_step(result) == samples


def seen(elements=None, backwards=1.0, **facts):
    return {"input_elements": elements, "backwards_per_step": backwards, **facts}


@cases(
    "one, two, scaling",
    (seen(backwards=8.0), seen(backwards=4.0), "strong"),
    (seen(backwards=2.0), seen(backwards=2.0), "unknown"),  # of which batch, nothing tells
    (seen(1024), seen(1024), "weak"),
    (seen(1024), seen(512), "strong"),
    (seen(1024), seen(1024, None), "unknown"),  # it changes while it is measured
    (seen(1024), seen(1024, **{"wrappers": [{"kind": "_PipelineStageBase"}]}), "unknown"),
    (seen(1024), seen(1024, **tensor(2, "Shard(dim=0)", data_ranks=2)), "weak"),
    (seen(1024), seen(1024, **tensor(2, "Shard(dim=0)")), "unknown"),  # FSDP by hand
    (seen(1024), seen(1024, **tensor(2, *ROWWISE, data_ranks=1)), "strong"),
)
def test_without_samples_the_work_of_a_rank_tells_or_nothing_does(one, two, scaling):
    growth = grows(n1=one, n2=two)
    assert growth.scaling == scaling
    assert bool(growth.why_unknown) == (scaling == "unknown")
    share = {n: work / growth.rank_work[1] for n, work in growth.rank_work.items()}
    assert share == {"strong": {1: 1, 2: 0.5}, "weak": {1: 1, 2: 1}, "unknown": {}}[scaling]


def test_one_number_of_ranks_tells_nothing_of_the_scaling():
    assert grows(n2=16.0) == grows() == Growth("unknown")


def sent(kind, start, end, phase, ordinal=0, size=2, **changes):
    asked = {"enqueued_ns": round(start * 1e6), "num_bytes": 1_000_000, "group_size": size}
    fields = {"kind": kind, "name": f"gloo:{kind}", "phase": phase, **asked, **changes}
    return make_operation(start, end, ordinal=ordinal, **fields)


GATHERS = [sent("all_gather", 20, 30, "forward"), sent("reduce_scatter", 70, 90, "backward")]
SLOW = make_trace(GATHERS, [(0, 20), (30, 70), (90, 100)])


@cases(
    "trace, facts, why",
    (make_trace([], [(0, 100)]), {}, "no communication at N=2"),
    (make_trace([sent("send", 1, 2, "forward")]), {}, "divides the model itself"),
    (make_trace([sent("all_gather", 1, 2, "forward", size=1)]), {}, "in groups of 1"),
    (
        make_trace([sent("all_gather", 1, 2, "forward", num_bytes=None)]),
        {},
        "does not say how much gloo:all_gather sends",
    ),
    (SLOW, {"wrappers": [{"kind": "DTensor"}]}, "divides the model itself"),
    (SLOW, {"wrappers": [{"kind": "_PipelineSchedule"}]}, "divides the model itself"),
    (
        SLOW,
        {"groups": [{"name": "Megatron tensor parallel", "ranks": 2, "count": 1}]},
        "divides the model itself",
    ),
)
def test_a_step_that_does_not_tell_other_sizes_says_why(trace, facts, why):
    traces = [trace, trace]
    if not trace.operations:  # one rank that sends lets the launch be looked into
        traces = [make_trace([sent("barrier", 1, 2, "forward", num_bytes=None)])] * 2
    told = {"clean": 100, "facts": facts, "samples_per_step": 32}
    ranks = [make_traced_record(rank, trace, **told) for rank, trace in enumerate(traces)]
    launched = make_result(cell(2).model_copy(update={"backend": "gloo"}), ranks=ranks)
    with pytest.raises(NoShape, match=why):
        shape_among_ranks([attribute(launched)])
