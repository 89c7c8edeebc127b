"""Whole strategies of configurations and whole configurations of strategies, field by field."""

import pytest

from scalebench.costmodel.search.choice import Choice
from scalebench.costmodel.search.strategies import NO_LAYERS, choice_of, strategy_of
from scalebench.spec import (
    Context,
    Ddp,
    Execution,
    Expert,
    Fsdp,
    LayerWise,
    Mesh,
    Pipeline,
    Plain,
    Tensor,
    Zero1,
)

MIXED = {"precision": "bfloat16", "checkpointing": "full"}
SO = {"autocast": True, "checkpointing": True}
"""What `MIXED` is in a strategy."""

STAGES = {"schedule": "interleaved-1f1b", "microbatches": 6, "chunks": 2}

PAIRS = [
    (6, Choice(data=6, bucket_mb=7.5, microbatches=5, **MIXED),
     Ddp(bucket_mb=7.5, accumulate=5, **SO)),
    (6, Choice(data=6, checkpointing="selective"), Ddp(checkpointing="selective")),
    (6, Choice(data=1, shard=6, zero=1, **MIXED), Zero1(**SO)),
    (6, Choice(data=1, shard=6, zero=2), Fsdp(reshard_after_forward=False)),
    (6, Choice(data=1, shard=6, zero=3), Fsdp()),
    (6, Choice(data=2, shard=3, zero=3, **MIXED), Fsdp(shard_size=3, **SO)),
    (6, Choice(data=3, shard=2, zero=2), Fsdp(shard_size=2, reshard_after_forward=False)),
    (6, Choice(data=2, pipeline=3, **STAGES), Pipeline(data_parallel=2, **STAGES)),
    (6, Choice(data=2, expert=3, **MIXED), Expert(size=3, **SO)),
    (6, Choice(data=3, context=2, context_method="ring"), Context(size=2, method="ring")),
    (6, Choice(data=2, context=3), Context(size=3)),
    (6, Choice(data=2, tensor=3, placement=("tensor", "data"), **MIXED),
     Mesh(data=2, tensor=3, sequence=True, loss=True, **SO)),
    (6, Choice(data=2, tensor=3, placement=("data", "tensor")),
     Mesh(data=2, tensor=3, sequence=True, loss=True,
          order=("pipeline", "tensor", "shard", "context", "data"))),
    (12, Choice(data=2, shard=3, tensor=2, zero=3, placement=("tensor", "shard", "data")),
     Mesh(data=2, shard=3, tensor=2, sequence=True, loss=True)),
    (12, Choice(data=2, shard=2, context=3, zero=3, context_method="ring",
                placement=("data", "context", "shard")),
     Mesh(data=2, shard=2, context=3, method="ring",
          order=("pipeline", "shard", "context", "data", "tensor"))),
    (12, Choice(data=2, shard=2, pipeline=3, zero=2, placement=("pipeline", "shard", "data"),
                **STAGES),
     Mesh(data=2, shard=2, pipeline=3, order=("data", "shard", "pipeline", "context", "tensor"),
          **STAGES)),
    (6, Choice(data=1, context=2, pipeline=3, placement=("context", "pipeline"), **STAGES),
     Mesh(data=1, context=2, pipeline=3, **STAGES)),
]  # fmt: skip


@pytest.mark.parametrize(("n", "choice", "strategy"), PAIRS, ids=lambda x: getattr(x, "name", ""))
def test_a_configuration_and_its_strategy(n: int, choice: Choice, strategy: Execution) -> None:
    assert strategy_of(choice, "cpu", n, 72) == strategy
    assert choice_of(strategy, n) == choice


def test_a_mesh_without_context_groups_has_no_method_of_theirs() -> None:
    choice = Choice(data=1, tensor=2, placement=("tensor",))
    ring = choice.model_copy(update={"context_method": "ring"})
    assert strategy_of(ring, "cpu", 2, 72) == strategy_of(choice, "cpu", 2, 72)
    assert choice_of(Mesh(data=1, tensor=2, method="ring"), 2) == choice


@pytest.mark.parametrize("size", [2, 3])
def test_experts_are_among_the_replicas_of_a_mesh(size: int) -> None:
    """What is left of the replicas are groups of experts with the same part of the samples."""
    found = choice_of(Mesh(data=6, expert=size, context=2), 12)
    expected = Choice(
        data=6 // size, expert=size, context=2, placement=("context", "data"),
        context_method="ulysses",
    )  # fmt: skip
    assert found == expected


@pytest.mark.parametrize(
    ("strategy", "n", "expected"),
    [
        (Plain(autocast=True), 5, Choice(data=1, precision="bfloat16")),
        (Ddp(), 1, Choice(data=1)),
        (Zero1(), 1, Choice(data=1)),
        (Zero1(), 2, Choice(data=1, shard=2, zero=1)),
        (Fsdp(), 1, Choice(data=1)),
        (Fsdp(reshard_after_forward=False), 2, Choice(data=1, shard=2, zero=2)),
        (Fsdp(shard_size=1), 3, Choice(data=3)),
        (Tensor(size=3), 12, Choice(data=4, tensor=3)),
        (Tensor(), 3, Choice(data=1, tensor=3)),
        (Context(size=2, method="ring"), 6, Choice(data=3, context=2, context_method="ring")),
        (Expert(size=2), 6, Choice(data=3, expert=2)),
        (Pipeline(microbatches=5), 1, Choice(data=1, microbatches=5)),
        (Pipeline(microbatches=5, data_parallel=3), 3, Choice(data=3, microbatches=5)),
        (Pipeline(schedule="gpipe", microbatches=5), 2,
         Choice(data=1, pipeline=2, schedule="gpipe", microbatches=5)),
        (Mesh(data=2, expert=2), 1, Choice(data=1)),
        (Mesh(data=1, shard=2, tensor=3), 6,
         Choice(data=1, shard=2, tensor=3, zero=3, placement=("tensor", "shard"))),
        (Mesh(data=1, pipeline=2, tensor=3, schedule="gpipe", microbatches=4), 6,
         Choice(data=1, pipeline=2, tensor=3, schedule="gpipe", microbatches=4,
                placement=("tensor", "pipeline"))),
    ],
)  # fmt: skip
def test_a_strategy_is_read_at_any_number_of_ranks(
    strategy: Execution, n: int, expected: Choice
) -> None:
    assert choice_of(strategy, n) == expected


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Fsdp(cpu_offload=True), "Fsdp is not in the space of the search"),
        (Fsdp(param_dtype="bfloat16"), "Fsdp is not in the space of the search"),
        (LayerWise(), "LayerWise is not in the space of the search"),
        (Pipeline(schedule="zbv", chunks=2), "zbv with balanced stages is not in the space"),
        (Pipeline(schedule="dualpipev", chunks=2), "dualpipev with balanced stages is not in"),
        (Pipeline(split="unbalanced"), "1f1b with unbalanced stages is not in the space"),
    ],
)
def test_what_the_search_does_not_know_is_said(strategy: Execution, words: str) -> None:
    found = choice_of(strategy, 2)
    assert isinstance(found, str) and words in found


def refused(choice: Choice, n: int, batch: int = 72, **changes: int) -> str:
    found = strategy_of(choice, "cpu", n, batch, **changes)
    assert isinstance(found, str), found
    return found


def test_only_a_mixture_has_no_stages_and_no_tensor_groups() -> None:
    tensor, staged = Choice(data=1, tensor=2), Choice(data=1, pipeline=2, schedule="gpipe")
    assert refused(tensor, 2, experts=2) == refused(staged, 2, experts=2) == NO_LAYERS
    assert isinstance(strategy_of(tensor, "cpu", 2, 72, 1), Mesh)
    assert isinstance(strategy_of(Choice(data=2), "cpu", 2, 72, 2), Ddp)


def test_a_pipeline_cuts_the_batch_of_each_replica() -> None:
    """Of 72 samples each of three replicas has 24: six microbatches divide them, five do not."""
    staged = Choice(data=3, pipeline=2, schedule="gpipe", microbatches=6)
    assert isinstance(strategy_of(staged, "cpu", 6, 72), Pipeline)
    five = staged.model_copy(update={"microbatches": 5})
    assert refused(five, 6) == "24 samples per pipeline cannot be split into 5 microbatches"
    assert isinstance(strategy_of(five, "cpu", 6, 75), Pipeline)
    one = Choice(data=1, pipeline=2, schedule="gpipe", microbatches=24)
    assert isinstance(strategy_of(one, "cpu", 2, 72), Pipeline)


def test_the_stages_of_a_mesh_cut_the_batch_of_its_replicas_and_shards() -> None:
    """Of 72 samples each of two times three has 12."""
    staged = Choice(data=2, shard=3, zero=2, pipeline=2, schedule="1f1b", microbatches=4)
    assert isinstance(strategy_of(staged, "cpu", 12, 72), Mesh)
    eight = staged.model_copy(update={"microbatches": 8})
    assert refused(eight, 12) == "12 samples per pipeline cannot be split into 8 microbatches"
    few = Choice(data=1, tensor=2, pipeline=3, schedule="1f1b", microbatches=2)
    assert refused(few, 6) == "1f1b needs as many microbatches as stages: 2 for 3 stages"


@pytest.mark.parametrize(("zero", "staged"), [(1, True), (3, True), (1, False), (2, False)])
def test_a_mesh_has_one_stage_of_zero(zero: int, staged: bool) -> None:
    if staged:
        choice = Choice(data=1, shard=2, zero=zero, pipeline=2, schedule="gpipe")
        words = f"a mesh has ZeRO-2 of shards with stages, not ZeRO-{zero}"
    else:
        choice = Choice(data=1, shard=2, zero=zero, tensor=2)
        words = f"a mesh has ZeRO-3 of shards without stages, not ZeRO-{zero}"
    assert refused(choice, 4) == words


@pytest.mark.parametrize("schedule", ["looped-bfs", "zero-bubble"])
def test_stages_of_a_mesh_have_three_schedules(schedule: str) -> None:
    choice = Choice(data=1, tensor=2, pipeline=2, schedule=schedule)
    assert refused(choice, 4) == (
        f"stages of a mesh have gpipe, 1f1b, interleaved-1f1b, not {schedule}"
    )


def test_without_stages_only_replicas_add_up_microbatches() -> None:
    words = "gradients of several microbatches are added up by DDP and pipelines only"
    for axis, zero in (("shard", 3), ("tensor", 0), ("context", 0), ("expert", 0)):
        assert refused(Choice(data=1, zero=zero, microbatches=2, **{axis: 2}), 2) == words


def test_the_first_stage_of_zero_has_no_replicas() -> None:
    words = "ZeRO-1 divides the optimizer among all ranks"
    assert refused(Choice(data=2, shard=2, zero=1), 4) == words


@pytest.mark.parametrize("placement", [(), ("tensor",), ("tensor", "data")])
def test_a_placement_that_lacks_an_axis_is_the_usual_one(placement: tuple[str, ...]) -> None:
    made = strategy_of(Choice(data=2, context=2, tensor=2, placement=placement), "cpu", 8, 72)
    assert isinstance(made, Mesh)
    assert made.order == ("pipeline", "data", "shard", "context", "tensor")
