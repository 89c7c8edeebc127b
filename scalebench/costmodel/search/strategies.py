"""Configurations and strategies: which of them ranks can be asked to run, and back."""

from typing import Any, Literal

from scalebench.costmodel.pipelines.orders import why_no_pipeline
from scalebench.costmodel.search.choice import Choice
from scalebench.spec import (
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


def strategy_of(choice: Choice, device: Device, world_size: int, batch: int) -> Execution | str:
    """Return the strategy that trains a configuration, or why none can.

    Args:
        choice: The configuration.
        device: Of the ranks.
        world_size: N.
        batch: Global batch, samples.
    """
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
    if several == {"tensor"}:
        return Mesh(data=choice.data, tensor=choice.tensor, sequence=True, loss=True, **common)
    if several == {"tensor", "shard"} and choice.zero == 3 and choice.data == 1:
        return Mesh(shard=None, tensor=choice.tensor, sequence=True, loss=True, **common)
    return f"no strategy here combines {_joined(sorted(several), choice)}"


def _joined(several: list[str], choice: Choice) -> str:
    told = [*(["data"] if choice.data > 1 else []), *several]
    told = [f"shard (ZeRO-{choice.zero})" if axis == "shard" else axis for axis in told]
    return ", ".join(told[:-1]) + f" and {told[-1]}" if len(told) > 1 else told[0]


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
    if isinstance(strategy, Tensor):
        size = strategy.ranks_per_group(n)
        return {"data": n // size, "tensor": size}
    if isinstance(strategy, Context):
        size = strategy.ranks_per_group(n)
        return {"data": n // size, "context": size, "context_method": strategy.method}
    if isinstance(strategy, Expert):
        size = strategy.ranks_per_group(n)
        return {"data": n // size, "expert": size}
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


def _meshed(strategy: Mesh, n: int) -> dict[str, Any] | str:
    wider = [axis for axis in ("context", "expert", "pipeline") if getattr(strategy, axis, 1) != 1]
    if wider:
        return f"a mesh with {wider[0]} is not compared with the search"
    tensor, shards = strategy.ranks_per_group(n), strategy.ranks_per_shard_group(n)
    return {
        "data": n // tensor // shards,
        "shard": shards,
        "zero": 3 if shards > 1 else 0,
        "tensor": tensor,
    }
