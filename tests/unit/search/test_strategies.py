from scalebench.search.choice import Choice, choice_of, strategy_of
from scalebench.spec import Mesh, Pipeline
from tests.examples import cases

RUNS = [
    Choice(data=4, bucket_mb=1.0, microbatches=2),
    Choice(data=4, precision="bfloat16", checkpointing="selective"),
    Choice(data=1, shard=4, zero=1),
    Choice(data=1, shard=4, zero=2),
    Choice(data=2, shard=2, zero=3, checkpointing="full"),
    Choice(data=2, tensor=2),
    Choice(data=1, shard=2, zero=3, tensor=2),
    Choice(data=2, context=2, context_method="ring"),
    Choice(data=1, expert=4),
    Choice(data=2, pipeline=2, schedule="interleaved-1f1b", chunks=2, microbatches=4),
    Choice(data=1, context=2, tensor=2, context_method="ring"),
    Choice(data=1, shard=2, context=2, zero=3),
    Choice(data=1, pipeline=2, tensor=2, schedule="1f1b", microbatches=4),
    Choice(data=1, pipeline=2, shard=2, zero=2, schedule="gpipe", microbatches=2),
    Choice(data=1, pipeline=2, context=2, schedule="1f1b", microbatches=4, precision="bfloat16"),
]

MESHES = [
    Choice(data=2, shard=2, tensor=2, zero=3),
    Choice(
        data=1, shard=2, tensor=2, pipeline=2, zero=2, schedule="interleaved-1f1b", chunks=2,
        microbatches=4, placement=("tensor", "pipeline", "shard"),
    ),
    Choice(data=1, shard=2, context=2, tensor=2, zero=3, placement=("shard", "tensor", "context")),
    Choice(data=2, context=2, pipeline=2, schedule="1f1b", microbatches=4),
]  # fmt: skip


@cases("choice", *RUNS, *MESHES, ids=lambda choice: choice.name)
def test_there_and_back(choice):
    world_size = 8 if choice in MESHES else 4
    strategy = strategy_of(choice, "cpu", world_size, 64)
    assert isinstance(strategy, Mesh) or choice in RUNS, strategy
    back = choice_of(strategy, world_size)
    assert (back.mesh, back.how_words) == (choice.mesh, choice.how_words)
    if choice.placement:
        assert back.placement == choice.placement
        neighbours = strategy.coordinates(1, 8)
        assert neighbours[choice.placement[0]] == 1 and sum(neighbours.values()) == 1


@cases(
    "choice, words",
    (Choice(data=1, shard=4, zero=3, microbatches=2), "several microbatches"),
    (Choice(data=2, shard=2, zero=1), "among all ranks"),
    (Choice(data=1, pipeline=4, schedule="1f1b", microbatches=2), "microbatches"),
    (Choice(data=1, tensor=2, expert=2), "expert and tensor cannot be combined yet"),
    (Choice(data=1, shard=2, tensor=2, zero=2), "ZeRO-3 of shards without stages"),
    (
        Choice(data=1, tensor=2, pipeline=2, schedule="zero-bubble", microbatches=4),
        "not zero-bubble",
    ),
    (
        Choice(data=1, tensor=2, pipeline=2, schedule="1f1b", microbatches=4, checkpointing="full"),
        "checkpointing inside the stages",
    ),
    (Choice(data=1, tensor=2, pipeline=2, schedule="1f1b", microbatches=128), "64 samples"),
)
def test_what_no_strategy_trains_says_why(choice, words):
    found = strategy_of(choice, "cpu", 4, 64)
    assert isinstance(found, str) and words in found


@cases("schedule", "zero-bubble", "zbv", "dualpipev")
def test_a_backward_pass_in_two_calls_is_not_selective(schedule):
    chunks = 1 if schedule == "zero-bubble" else 2
    settings = {"schedule": schedule, "chunks": chunks, "microbatches": 4}
    refused = Pipeline(**settings, checkpointing="selective").why_not("cpu", 2)
    assert refused is not None and "checkpointing=True" in refused
    assert Pipeline(**settings, checkpointing=True).why_not("cpu", 2) is None
    assert Pipeline(schedule="1f1b", checkpointing="selective").why_not("cpu", 2) is None
