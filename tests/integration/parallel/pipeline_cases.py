"""What the ranks of `pipeline_ranks` train: every schedule, several models, each a cell."""

from scalebench.costmodel.pipelines.orders import STYLES
from scalebench.spec import Cell, LayerWise, Pipeline, StepPlan
from scalebench.spec.presets import CnnShape, GptShape, MlpShape, PacedShape, WorkloadSpec

DEEP = GptShape(name="deep", layers=7, heads=2, width=16, context=8, batch_size=8)
"""9 layers, the first and the last share the embedding; no number of stages divides them."""

ALONE = ("1f1b", "interleaved-1f1b", "zero-bubble")
"""Schedules that one rank alone runs as well."""

MODELS: dict[str, WorkloadSpec] = {
    "cnn": CnnShape(name="c", depth=8, width=4, image=8, batch_size=8),
    "mlp": MlpShape(name="m", layers=4, width=8, features=6, batch_size=8),
    "paced": PacedShape(name="p", stages=5, stage_parameters=7, sample_s=1e-4, batch_size=8),
}


def cases(world_size: int) -> dict[str, Cell]:
    """Return the cells of one world size by name."""
    found = {}
    for name, style in STYLES.items():
        chunks = {"one": 1, "two": 2, "any": 2 if name != "zero-bubble" else 1}[style.chunks]
        found[name] = _cell(world_size, DEEP, Pipeline(schedule=name, chunks=chunks))
    if world_size == 1:
        return {name: found[name] for name in ALONE}
    if world_size == 2:
        found["layer by layer"] = _cell(world_size, DEEP, LayerWise())
        zero_bubble = Pipeline(schedule="zero-bubble", chunks=2)
        found["zero-bubble, 2 chunks"] = _cell(world_size, DEEP, zero_bubble)
        for name, model in MODELS.items():
            schedule = "zero-bubble" if name == "paced" else "1f1b"
            found[name] = _cell(world_size, model, Pipeline(schedule=schedule, microbatches=4))
        found["even"] = _cell(world_size, DEEP, Pipeline(split="even"))
        found["checkpointing"] = _cell(world_size, DEEP, Pipeline(checkpointing=True))
        found["bf16"] = _cell(world_size, DEEP, Pipeline(autocast=True))
        too_many = Pipeline(schedule="looped-bfs", chunks=3)
        found["more stages than layers"] = _cell(world_size, MODELS["paced"], too_many)
        found["cut by time"] = _cell(world_size, DEEP, Pipeline(split="measured"))
    if world_size == 4:
        del found["gpipe"], found["looped-bfs"]
        found["unbalanced"] = _cell(world_size, DEEP, Pipeline(split="unbalanced"))
        side_by_side = Pipeline(schedule="interleaved-1f1b", chunks=2, data_parallel=2)
        found["layer by layer, 2 copies"] = _cell(world_size, DEEP, LayerWise(size=2), batch=16)
        found["2 pipelines"] = _cell(world_size, DEEP, side_by_side, batch=16)
    return found


def _cell(world_size: int, model: WorkloadSpec, strategy: Pipeline, batch: int = 8) -> Cell:
    return Cell(
        suite="test",
        case="test",
        strategy=strategy,
        workload=model,
        scaling="strong",
        world_size=world_size,
        global_batch=batch,
        rank_batch=batch // strategy.num_shards(world_size),
        device="cpu",
        backend="gloo",
        threads=1,
        purpose="inspect",
        steps=StepPlan(),
    )
