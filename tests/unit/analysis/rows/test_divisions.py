"""How the axes of a mesh divide a rank's memory: whose stage, whose parameters, which facts."""

from dataclasses import replace

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.memory_axes import _fullest, divisions_of, memory_by_axis
from scalebench.costmodel.memory_axes import Division
from scalebench.records.rank import Memory
from scalebench.spec import Context, Mesh, Tensor
from tests.builders.runs import make_cell, make_record, make_result
from tests.unit.analysis.rows.test_memory_axes import ALONE, LAYERS, result

FACTS = {"parameters": [[600, True], [300, False]]}
"""Of 1000 parameters of the model a rank's stage has 900."""


def divisions(strategy, world_size, rank=0, facts=FACTS):
    cell = make_cell("mesh", world_size, strategy=strategy, global_batch=48, rank_batch=48)
    return divisions_of(cell, rank, 1000, facts)


def test_all_axes_of_a_mesh_outermost_first():
    """3 ranks of a tensor group leave 600/3 + 300 of 900."""
    mesh = Mesh(tensor=3, shard=2, data=5, sequence=True)
    assert divisions(mesh, 30) == [
        Division("pipeline", 1, 1.0, 1.0),
        Division("data", 5, 1.0, pytest.approx(1 / 5)),
        Division("shard", 2, 0.5, 0.5),
        Division("context", 1, 1.0, 1.0),
        Division("tensor", 3, pytest.approx(5 / 9), pytest.approx(1 / 3)),
    ]


@pytest.mark.parametrize(("rank", "kept"), [(0, 3), (1, 3), (2, 2), (5, 1)])
def test_the_first_stage_keeps_most_microbatches(rank, kept):
    """So many of five under 1F1B, of a third of the layers; two ranks have the same stage."""
    pipeline, data, *_ = divisions(Mesh(pipeline=3, data=2, microbatches=5), 6, rank)
    assert pipeline == Division("pipeline", 3, 0.9, pytest.approx(kept / 5 / 3))
    assert data == Division("data", 2, 1.0, 0.5)


def test_groups_of_tokens_and_of_matrices_stand_beside_replicas():
    assert divisions(Context(size=3), 12) == [
        Division("data", 4, 1.0, 0.25),
        Division("context", 3, 1.0, pytest.approx(1 / 3)),
    ]
    assert divisions(Tensor(size=3), 12) == [
        Division("data", 4, 1.0, 0.25),
        Division("tensor", 3, pytest.approx(5 / 9), 1.0),
    ]
    assert divisions(Tensor(size=3, sequence=True), 3)[1].activations == pytest.approx(1 / 3)
    with pytest.raises(Unavailable, match="no launch told which layers"):
        divisions(Tensor(size=3), 12, facts={})
    assert divisions(Context(size=3), 12, facts={})[0].num_ranks == 4


def test_the_fullest_rank_is_that_of_the_inspection():
    def inspected(*peaks):
        ranks = [
            make_record(r, memory=Memory(allocated_bytes=peak)) for r, peak in enumerate(peaks)
        ]
        return make_result(make_cell("mesh", len(peaks), rank_batch=8), ranks=ranks)

    ran = inspected(None, None, None)
    assert _fullest(ran, inspected(5, 9, 7)).rank == 1
    assert _fullest(ran, inspected(5, 9, 9)).rank == 1
    assert _fullest(ran, inspected(None, None, 1)).rank == 2
    assert _fullest(ran, inspected(None, 0, 0)).rank == 0
    assert _fullest(ran, None).rank == 0


def test_what_is_left_of_one_process_and_where_the_layers_are_told():
    """A launch of the shard alone knows them where the row's own does not."""
    bare = {"optimizer": "AdamW"}
    cell = make_cell("tensor", 2, strategy=Tensor(), global_batch=32, rank_batch=32)
    shards = [
        make_result(cell, ranks=[make_record(0, facts=facts), make_record(1)])
        for facts in ({}, LAYERS, {"parameters": [[1000, True]]})
    ]
    found = memory_by_axis(result(Tensor(size=2), 2, bare), None, ALONE, shards)
    # Of 12,000 bytes of state 0.6 are divided by two.
    assert [(one.axis, one.num_ranks, one.state_bytes) for one in found.savings] == [
        ("tensor", 2, 3600)
    ]
    assert (found.one_process_bytes, found.rank_bytes) == (28100, 24500)


def test_the_whole_batch_is_what_one_process_would_train():
    """Of 64 samples twice the activations of the 32 that were measured."""
    ran = result(Context(), 4)
    cell = ran.cell.model_copy(update={"global_batch": 64, "rank_batch": 64})
    found = memory_by_axis(ran.model_copy(update={"cell": cell}), None, ALONE, ())
    assert found.one_process_bytes == 4000 + 8000 + 32000 + 100
    assert found.savings[0].activations_bytes == 24000


@pytest.mark.parametrize("change", ["none", "no ranks", "no parameters", "no activations"])
def test_without_a_launch_or_a_model_nothing_is_told(change):
    ran, baseline = result(Context(), 2), ALONE
    if change == "none":
        ran = None
    elif change == "no ranks":
        ran = ran.model_copy(update={"ranks": []})
    elif change == "no parameters":
        ranks = [rank.model_copy(update={"num_parameters": None}) for rank in ran.ranks]
        ran = ran.model_copy(update={"ranks": ranks})
    else:
        baseline = replace(ALONE, memory=Memory(rss_bytes=1))
    reasons = {
        "none": "no launch of this row",
        "no ranks": "no launch of this row",
        "no parameters": "no plain baseline",
        "no activations": "activations of the plain baseline were not measured",
    }
    with pytest.raises(Unavailable, match=reasons[change]):
        memory_by_axis(ran, None, baseline, ())
