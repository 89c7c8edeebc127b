"""DeepSpeed's engine: it owns the model, the optimizer and the step.

The engine is given the model, the optimizer and a configuration (Accelerate gives the same one).
``engine(batch)`` runs forward, ``engine.backward(loss)`` divides the loss by the microbatches and
reduces gradients as ZeRO's stage says, ``engine.step()`` updates at the last microbatch and does
nothing at the others. DeepSpeed counts its buckets in elements, and has clipped gradients to a norm
of 1 by default since 2026; both are set here. Sources: Rajbhandari et al. 2020 (ZeRO); DeepSpeed's
documentation, "Training API" and "Configuration JSON".
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import Accelerate, DeepSpeed
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import building_nothing
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.frameworks.surroundings import (
    between_all,
    framework_facts,
    look_like_torchrun,
    sum_of_parts,
)
from scalebench.worker.workloads.batches import split

READ_BACK: dict[str, Callable[[Any], Any]] = {
    "gradient_clipping": lambda engine: engine.gradient_clipping(),
    "reduce_bucket_size": lambda engine: engine.zero_reduce_bucket_size(),
    "allgather_bucket_size": lambda engine: engine.zero_allgather_bucket_size(),
    "overlap_comm": lambda engine: engine.zero_overlap_comm(),
    "contiguous_gradients": lambda engine: engine.zero_contiguous_gradients(),
    "reduce_scatter": lambda engine: engine.zero_reduce_scatter(),
    "gradient_accumulation_steps": lambda engine: engine.gradient_accumulation_steps(),
    "steps_per_print": lambda engine: engine.steps_per_print(),
}
READ_BACK_OF_STAGE_3: dict[str, Callable[[Any], Any]] = {
    "stage3_prefetch_bucket_size": lambda engine: engine.zero_prefetch_bucket_size(),
    "stage3_param_persistence_threshold": lambda e: e.zero_param_persistence_threshold(),
    "stage3_max_reuse_distance": lambda engine: engine.zero_max_reuse_distance(),
    "stage3_max_live_parameters": lambda engine: engine.zero_max_live_parameters(),
}
"""Setting → how the engine tells it."""


def load_deepspeed(context: RankContext) -> Any:
    """Import DeepSpeed for this rank's kind of device, and keep it from compiling.

    DeepSpeed compiles an extension for inference on CPU as soon as it is initialised, which takes a
    minute, unless its table of operations says that it cannot be built here. Training does not use
    it.
    """
    look_like_torchrun(context)
    if context.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def engine_config(strategy: DeepSpeed | Accelerate, context: RankContext) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a strategy."""
    rank_batch = context.cell.rank_batch
    zero: dict[str, Any] = {"stage": strategy.stage}
    if getattr(strategy, "offload", False):
        zero["offload_optimizer"] = {"device": "cpu"}
        if strategy.stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": rank_batch // strategy.accumulate,
        "gradient_accumulation_steps": strategy.accumulate,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if strategy.autocast:
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    if strategy.as_shipped:
        return config
    ahead = context.device.type == "cuda"
    return config | _alike(zero, strategy.elements_per_bucket, ahead)


def _alike(zero: dict[str, Any], elements: int | None, ahead: bool) -> dict[str, Any]:
    """Return what makes a case compare with other frameworks: no clipping, the same buckets.

    With stage 3, parameters are given up after forward as FSDP2 does it, however small, and
    gathered ahead of the computation only where FSDP2 does that: on GPUs.
    """
    buckets = {} if elements is None else dict.fromkeys(BUCKETS, elements)
    if zero["stage"] == 3 and elements is not None:
        buckets |= {"stage3_prefetch_bucket_size": elements if ahead else 0}
        buckets |= {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
    return {
        "gradient_clipping": 0.0,
        "steps_per_print": sys.maxsize,
        "zero_optimization": zero | buckets,
    }


BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")


def settings_in_force(engine: Any) -> dict[str, Any]:
    """Return what the engine says of its own configuration."""
    stage = int(engine.zero_optimization_stage())
    asked = READ_BACK | (READ_BACK_OF_STAGE_3 if stage == 3 else {})
    return {"zero_stage": stage} | {name: ask(engine) for name, ask in asked.items()}


def deepspeed_gradients(
    module: torch.nn.Module, shapes: dict[str, torch.Size], device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and full gradient of every parameter, gathered by DeepSpeed itself."""
    from deepspeed.utils import safe_get_full_grad

    for name, parameter in module.named_parameters():
        gradient = safe_get_full_grad(parameter)
        if gradient is None:
            gradient = torch.zeros(shapes[name])
        yield name, gradient.view(shapes[name]).to(device)


def shards_of_stage_3(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return this rank's parts of the parameters that stage 3 divides; nothing in other stages."""
    divided: list[Any] = [one for one in module.parameters() if hasattr(one, "ds_tensor")]
    return [one.ds_tensor for one in divided]


class DeepSpeedTraining(Training):
    """The model in DeepSpeed's engine."""

    frees_gradients = True

    def __init__(self, strategy: DeepSpeed, workload: Workload, context: RankContext) -> None:
        deepspeed = load_deepspeed(context)
        super().__init__(strategy, workload, context)
        self.groups = between_all(context)
        self.keeps_built = strategy.stage > 0
        self.module = prepare_module(
            workload, strategy.model_copy(update={"compile": False}), context.device
        )
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        with building_nothing():
            self.optimizer = make_optimizer(workload, self.module.parameters())
            deepspeed.init_distributed(dist_backend=dist.get_backend())
            self.engine, *_ = deepspeed.initialize(
                model=self.module, optimizer=self.optimizer, config=engine_config(strategy, context)
            )
        if strategy.compile:
            self.engine.compile()
        self.facts = framework_facts(strategy, settings_in_force(self.engine))

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        losses = []
        for microbatch in split(batch, self.strategy.accumulate):
            loss = self.loss(self.engine, microbatch)
            self.engine.backward(loss)
            losses.append(loss.detach())
            if self.before_update is not None and self.engine.is_gradient_accumulation_boundary():
                self.before_update()
            self.engine.step()
        return sum_of_parts(losses)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the mean gradients, before the update: DeepSpeed frees them in it."""
        return deepspeed_gradients(self.module, self.shapes, self.device)

    def kept_shards(self) -> list[torch.Tensor]:
        """Return the parameters of this rank that the module does not show."""
        return shards_of_stage_3(self.module)
