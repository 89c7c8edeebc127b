"""Configurations and strategies: which of them ranks can be asked to run, and back."""

from typing import Any, Literal

from scalebench.costmodel.pipelines.orders import why_no_pipeline
from scalebench.search.choice import Choice
from scalebench.spec import (
    AXES,
    Context,
    Ddp,
    Device,
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

CHECKPOINTING: dict[str, bool | Literal["selective"]] = {
    "none": False,
    "selective": "selective",
    "full": True,
}


NO_LAYERS = (
    "a mixture of experts has no stages and no tensor groups: its workloads name no layers and no "
    "tensor_plan"
)


def strategy_of(
    choice: Choice, device: Device, world_size: int, batch: int, experts: int = 1
) -> Execution | str:
    """Return the strategy that trains a configuration, or why none can.

    Args:
        choice: The configuration.
        device: Of the ranks.
        world_size: N.
        batch: Global batch, samples.
        experts: Of a block of the model; 1: it is no mixture.
    """
    if experts > 1 and choice.pipeline * choice.tensor > 1:
        return NO_LAYERS
    common: dict[str, Any] = {
        "autocast": choice.precision == "bfloat16",
        "checkpointing": CHECKPOINTING[choice.checkpointing],
    }
    made = _strategy(choice, common)
    if isinstance(made, str):
        return made
    reason = made.why_not(device, world_size)
    if reason is None and isinstance(made, Pipeline):
        reason = why_no_pipeline(made, batch // max(1, choice.data), world_size)
    if reason is None and isinstance(made, Mesh) and made.pipeline > 1:
        samples = batch // made.num_shards(world_size)
        reason = why_no_pipeline(made.as_pipeline(), samples, made.pipeline)
    return made if reason is None else reason


def _strategy(choice: Choice, common: dict[str, Any]) -> Execution | str:
    several = {axis for axis in ("expert", "context", "tensor", "pipeline", "shard")
               if getattr(choice, axis) > 1}  # fmt: skip
    if several == {"pipeline"}:
        return Pipeline(
            schedule=choice.schedule,
            microbatches=choice.microbatches,
            chunks=choice.chunks,
            data_parallel=choice.data,
            **common,
        )
    if not several:
        return Ddp(bucket_mb=choice.bucket_mb, accumulate=choice.microbatches, **common)
    if choice.microbatches > 1 and "pipeline" not in several:
        return "gradients of several microbatches are added up by DDP and pipelines only"
    if several == {"shard"}:
        return _sharded(choice, common)
    if several == {"expert"}:
        return Expert(size=choice.expert, **common)
    if several == {"context"}:
        return Context(size=choice.context, method=choice.context_method, **common)
    return _mesh(choice, common)


MESH_SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")


def _mesh(choice: Choice, common: dict[str, Any]) -> Execution | str:
    """Return the mesh with the axes of a choice, or why there is none.

    A mesh with stages gathers its shards once a step (ZeRO-2); without, for each pass (ZeRO-3).
    """
    staged = choice.pipeline > 1
    if choice.shard > 1 and choice.zero != (2 if staged else 3):
        has = "ZeRO-2 of shards with stages" if staged else "ZeRO-3 of shards without stages"
        return f"a mesh has {has}, not ZeRO-{choice.zero}"
    given: dict[str, Any] = {}
    if staged:
        if choice.schedule not in MESH_SCHEDULES:
            return f"stages of a mesh have {', '.join(MESH_SCHEDULES)}, not {choice.schedule}"
        given = {name: getattr(choice, name) for name in ("schedule", "microbatches", "chunks")}
    if choice.tensor > 1:
        given |= {"sequence": True, "loss": True}
    if choice.context > 1:
        given["method"] = choice.context_method
    return Mesh(
        pipeline=choice.pipeline,
        data=choice.data * choice.expert,
        shard=choice.shard,
        context=choice.context,
        tensor=choice.tensor,
        expert=choice.expert,
        order=_order(choice),
        **given,
        **common,
    )


def _order(choice: Choice) -> tuple[Any, ...]:
    """Return a mesh's axes from the outermost to the innermost, those of one rank in their places.

    A placement names axes with several ranks the other way round.
    """
    several = {axis for axis in AXES if getattr(choice, axis) > 1}
    placed = [axis for axis in reversed(choice.placement) if axis in several]
    if set(placed) != several:  # experts are among the replicas, so a mesh may place one more
        return AXES
    places = iter(placed)
    return tuple(next(places) if axis in several else axis for axis in AXES)


def _sharded(choice: Choice, common: dict[str, Any]) -> Execution | str:
    if choice.zero == 1:
        if choice.data > 1:
            return "ZeRO-1 divides the optimizer among all ranks"
        return Zero1(**common)
    return Fsdp(
        shard_size=choice.shard if choice.data > 1 else None,
        reshard_after_forward=choice.zero == 3,
        **common,
    )


def choice_of(strategy: Execution, world_size: int) -> Choice | str:
    """Return a strategy as a configuration, or why the search knows none like it.

    Args:
        strategy: Of a row.
        world_size: N.
    """
    names = {False: "none", True: "full", "selective": "selective"}
    common: dict[str, Any] = {
        "checkpointing": names[strategy.checkpointing],
        "precision": "bfloat16" if strategy.computes_in_bfloat16 else "float32",
    }
    found = _axes(strategy, world_size)
    return found if isinstance(found, str) else Choice(**{**common, **found})


def _axes(strategy: Execution, n: int) -> dict[str, Any] | str:
    if isinstance(strategy, Plain):
        return {"data": 1}
    if isinstance(strategy, Ddp):
        return {"data": n, "bucket_mb": strategy.bucket_mb, "microbatches": strategy.accumulate}
    if isinstance(strategy, Zero1):
        return {"data": 1, "shard": n, "zero": 1} if n > 1 else {"data": 1}
    if isinstance(strategy, Fsdp) and not strategy.cpu_offload and not strategy.rounds_parameters:
        shards = strategy.shards(n)
        stage = 3 if strategy.reshard_after_forward else 2
        return {"data": n // shards, "shard": shards, "zero": stage if shards > 1 else 0}
    if isinstance(strategy, Pipeline) and not isinstance(strategy, LayerWise):
        return _staged(strategy, n)
    if isinstance(strategy, Mesh):
        return _meshed(strategy, n)
    if isinstance(strategy, Tensor | Context | Expert):
        size = strategy.ranks_per_group(n)
        method = {"context_method": strategy.method} if isinstance(strategy, Context) else {}
        return {"data": n // size, strategy.kind: size, **method}
    return f"{type(strategy).__name__} is not in the space of the search"


def _staged(strategy: Pipeline, n: int) -> dict[str, Any] | str:
    if strategy.schedule in ("zbv", "dualpipev") or strategy.split == "unbalanced":
        return f"{strategy.schedule} with {strategy.split} stages is not in the space"
    pipelines = strategy.pipelines(n)
    if n // pipelines == 1:
        return {"data": pipelines, "microbatches": strategy.microbatches}
    return {
        "data": pipelines,
        "pipeline": n // pipelines,
        "schedule": strategy.schedule,
        "chunks": strategy.chunks,
        "microbatches": strategy.microbatches,
    }


def _meshed(strategy: Mesh, n: int) -> dict[str, Any]:
    sizes = strategy.axis_sizes(n)
    staged, experts = sizes["pipeline"] > 1, strategy.expert if n > 1 else 1
    found: dict[str, Any] = {axis: size for axis, size in sizes.items() if axis != "data"}
    found |= {"data": sizes["data"] // experts, "expert": experts}
    found["placement"] = tuple(axis for axis in reversed(strategy.order) if sizes[axis] > 1)
    if sizes["shard"] > 1:
        found["zero"] = 2 if staged else 3
    if sizes["context"] > 1:
        found["context_method"] = strategy.method
    if staged:
        found |= {name: getattr(strategy, name) for name in ("schedule", "microbatches", "chunks")}
    return found
