"""What the ranks of `pipeline_ranks` train: every schedule, several models, each a cell."""

from scalebench.costmodel.pipelines.orders import STYLES
from scalebench.spec import LayerWise, Pipeline
from scalebench.spec.presets import CnnShape, GptShape, MlpShape, PacedShape, WorkloadSpec
from tests.integration.programs import inspecting

DEEP = GptShape(name="deep", layers=7, heads=2, width=16, context=8, batch_size=8)
"""9 layers, the first and the last share the embedding; no number of stages divides them."""

ALONE = ("1f1b", "interleaved-1f1b", "zero-bubble")
"""Schedules that one rank alone runs as well."""

MODELS: dict[str, WorkloadSpec] = {
    "cnn": CnnShape(name="c", depth=8, width=4, image=8, batch_size=8),
    "mlp": MlpShape(name="m", layers=4, width=8, features=6, batch_size=8),
    "paced": PacedShape(name="p", stages=5, stage_parameters=7, sample_s=1e-4, batch_size=8),
}


def cases(world_size):
    found = {}
    for name, style in STYLES.items():
        chunks = {"one": 1, "two": 2, "any": 2 if name != "zero-bubble" else 1}[style.chunks]
        found[name] = inspecting(Pipeline(schedule=name, chunks=chunks), DEEP, world_size, 8)
    if world_size == 1:
        return {name: found[name] for name in ALONE}
    if world_size == 2:
        found["layer by layer"] = inspecting(LayerWise(), DEEP, world_size, 8)
        zero_bubble = Pipeline(schedule="zero-bubble", chunks=2)
        found["zero-bubble, 2 chunks"] = inspecting(zero_bubble, DEEP, world_size, 8)
        for name, model in MODELS.items():
            schedule = "zero-bubble" if name == "paced" else "1f1b"
            found[name] = inspecting(
                Pipeline(schedule=schedule, microbatches=4), model, world_size, 8
            )
        found["even"] = inspecting(Pipeline(split="even"), DEEP, world_size, 8)
        found["checkpointing"] = inspecting(Pipeline(checkpointing=True), DEEP, world_size, 8)
        found["bf16"] = inspecting(Pipeline(autocast=True), DEEP, world_size, 8)
        too_many = Pipeline(schedule="looped-bfs", chunks=3)
        found["more stages than layers"] = inspecting(too_many, MODELS["paced"], world_size, 8)
        found["cut by time"] = inspecting(Pipeline(split="measured"), DEEP, world_size, 8)
    if world_size == 4:
        del found["gpipe"], found["looped-bfs"]
        found["unbalanced"] = inspecting(Pipeline(split="unbalanced"), DEEP, world_size, 8)
        side_by_side = Pipeline(schedule="interleaved-1f1b", chunks=2, data_parallel=2)
        found["layer by layer, 2 copies"] = inspecting(LayerWise(size=2), DEEP, world_size, 16)
        found["2 pipelines"] = inspecting(side_by_side, DEEP, world_size, 16)
    return found
