"""The batch of a user's script: what its ranks counted, and what that says of the scaling."""

from scalebench.analysis.counted_batch import Growth, growth_of, with_counted_batch, work_of_step
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_result
from tests.examples import cases

TARGET = ScriptTarget(name="train", program="train.py")


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


PIPELINE = {"wrappers": [{"kind": "_PipelineStageBase"}]}


@cases(
    "one, two, scaling",
    (seen(backwards=8.0), seen(backwards=4.0), "strong"),
    (seen(backwards=2.0), seen(backwards=2.0), "unknown"),  # of which batch, nothing tells
    (seen(1024), seen(1024), "weak"),
    (seen(1024), seen(512), "strong"),
    (seen(1024), seen(1024, None), "unknown"),  # it changes while it is measured
    (seen(1024), seen(1024, **PIPELINE), "unknown"),
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
