"""Memory of a row on a mesh, by what each axis takes off one process."""

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.memory_axes import NO_MESH, memory_by_axis
from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.records.rank import Memory
from scalebench.spec import Context, Ddp, Mesh, Plain, Tensor
from tests.builders.runs import make_cell, make_inspection, make_record, make_result

ALONE = MeasuredBaseline(
    Plain(),
    32,
    Memory(
        rss_bytes=1,
        parameters_bytes=4000,
        gradients_bytes=0,
        optimizer_bytes=8000,
        activations_bytes=16000,
        activations_peak_bytes=16000,
        data_bytes=100,
    ),
)
"""1,000 parameters and AdamW; 500 bytes of activations for each of 32 samples."""
LAYERS = {"optimizer": "AdamW", "parameters": [[600, True], [400, False]]}


def result(strategy, world_size, facts=LAYERS):
    cell = make_cell("mesh", world_size, strategy=strategy, global_batch=32, rank_batch=32)
    ranks = [make_record(r, num_parameters=1000, facts=facts) for r in range(world_size)]
    return make_result(cell, ranks=ranks)


def savings(strategy, world_size, facts=LAYERS, inspection=None):
    found = memory_by_axis(result(strategy, world_size, facts), inspection, ALONE, ())
    assert found.one_process_bytes == 4000 + 8000 + 16000 + 100
    total = sum(one.total_bytes for one in found.savings)
    assert found.rank_bytes == found.one_process_bytes - total
    return {one.axis: (one.state_bytes, one.activations_bytes) for one in found.savings}


def test_replicas_and_tensor_groups():
    """Half of the samples; of 600 of the 1,000 parameters half."""
    found = savings(Mesh(tensor=2, sequence=True), 4)
    assert found == {"data": (0, 8000), "tensor": (3600, 4000)}


def test_without_a_divided_sequence_no_law_says_what_tensor_groups_do_to_activations():
    assert savings(Tensor(size=2), 4) == {"data": (0, 8000), "tensor": (3600, 0)}


def test_shards_divide_everything():
    assert savings(Mesh(shard=None), 4) == {"shard": (9000, 12000)}


def test_tokens_divide_activations_alone():
    assert savings(Context(), 4) == {"context": (0, 12000)}


def test_the_stage_of_the_fullest_rank_counts():
    """It has all 1,000 of 1,000 parameters, and of 4 microbatches it keeps two, or one."""
    mesh = Mesh(pipeline=2, data=1, microbatches=4)
    assert savings(mesh, 2) == {"pipeline": (0, 16000 - 4000)}
    inspection = make_inspection(result(mesh, 2).cell)  # its rank 1 is the fullest
    assert savings(mesh, 2, inspection=inspection) == {"pipeline": (0, 16000 - 2000)}


@pytest.mark.parametrize(
    ("strategy", "facts", "reason"),
    [
        (Ddp(), LAYERS, NO_MESH),
        (Mesh(tensor=2), {"optimizer": "AdamW"}, "no launch told which layers are divided"),
        (Mesh(expert=2), LAYERS, "experts"),
        (
            Mesh(pipeline=2, microbatches=4, chunks=2, schedule="interleaved-1f1b"),
            LAYERS,
            "interleaved-1f1b",
        ),
        (Mesh(tensor=2), {**LAYERS, "optimizer": "Adafactor"}, "Adafactor"),
    ],
)
def test_what_cannot_be_told_has_a_reason(strategy, facts, reason):
    with pytest.raises(Unavailable, match=reason):
        memory_by_axis(result(strategy, 2, facts), None, ALONE, ())


def test_without_a_baseline_and_on_one_rank_there_is_nothing_to_divide():
    with pytest.raises(Unavailable, match="baseline"):
        memory_by_axis(result(Mesh(tensor=2), 2), None, None, ())
    with pytest.raises(Unavailable, match="one rank"):
        memory_by_axis(result(Mesh(), 1), None, ALONE, ())
