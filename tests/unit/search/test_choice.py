"""What a configuration is called, and which ones replicate all parameters."""

import pytest

from scalebench.search.choice import Choice


@pytest.mark.parametrize(
    ("choice", "mesh", "how", "name"),
    [
        (Choice(data=1), "one rank", "float32", "one"),
        (Choice(data=4), "data 4", "float32, buckets 25 MiB", "d4-b25"),
        (
            Choice(data=2, pipeline=2, schedule="1f1b", microbatches=4),
            "data 2 × pipeline 2", "1f1b, 4 microbatches, float32", "d2-p2-1f1b-m4",
        ),
        (
            Choice(data=1, pipeline=2, schedule="interleaved-1f1b", chunks=2),
            "pipeline 2", "interleaved-1f1b v=2, float32", "p2-interleaved-1f1b-v2",
        ),
        (
            Choice(data=2, shard=4, tensor=2, zero=3, precision="bfloat16"),
            "data 2 × shard 4 (ZeRO-3) × tensor 2", "bfloat16", "d2-s4-t2-z3-bf16",
        ),
        (
            Choice(data=1, context=2, context_method="ring", checkpointing="full"),
            "context 2", "ring, full checkpointing, float32", "c2-ring-full",
        ),
    ],
)  # fmt: skip
def test_a_configuration_in_words(choice: Choice, mesh: str, how: str, name: str) -> None:
    assert (choice.mesh_words, choice.how_words, choice.name) == (mesh, how, name)


@pytest.mark.parametrize(
    ("choice", "replicates"),
    [
        (Choice(data=1), False),
        (Choice(data=2), True),
        (Choice(data=1, expert=4), True),  # what is no expert's is on all ranks
        (Choice(data=1, shard=2, zero=1), True),
        (Choice(data=1, shard=2, zero=2), False),
        (Choice(data=2, tensor=2), False),
        (Choice(data=2, context=2), False),
        (Choice(data=2, pipeline=2, schedule="gpipe"), False),
    ],
)
def test_gradients_go_in_buckets_where_whole_replicas_sum_them(
    choice: Choice, replicates: bool
) -> None:
    assert choice.replicates_alone == replicates
