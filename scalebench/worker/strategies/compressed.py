"""Compressed data parallel: DDP whose buckets go through a compression method.

The replicas, the buckets and the overlap with backward are DDP's. A communication hook takes the
place of its all-reduce: our own around a codec, or one of torch's (``none``, ``powersgd``).
"""

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from scalebench.errors import UsageError
from scalebench.records.measured.rank import CompressionTraffic
from scalebench.spec import Compressed
from scalebench.spec.strategies.data_parallel import first_compressed_step
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported, classify
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.compression.emulation import EPSILON
from scalebench.worker.strategies.compression.hook import (
    Compression,
    Observer,
    compress,
    leave_alone,
)
from scalebench.worker.strategies.compression.methods import CODECS, new_memory
from scalebench.worker.strategies.data_parallel import replicated
from scalebench.worker.strategies.execution import make_optimizer, prepare_module

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


class CompressedTraining(Training):
    """The model wrapped in ``DistributedDataParallel`` with a communication hook.

    Attributes:
        settling_steps: Steps before the method compresses as far as it was asked to; they are
            never part of the clean window.
    """

    def __init__(self, strategy: Compressed, workload: Workload, context: RankContext) -> None:
        _refuse_sparse_gradients(workload.module, strategy)
        super().__init__(strategy, workload, context)
        self.settling_steps = first_compressed_step(strategy.settings)
        self.module = replicated(
            prepare_module(workload, strategy, context.device),
            context.device,
            bucket_cap_mb=strategy.bucket_mb,
        )
        parameters = self.module.module.parameters()
        self.observer = Observer({id(p): number for number, p in enumerate(parameters)})
        self.module.register_comm_hook(*self._hook(context.cell.seed))
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Train on this rank's batch."""
        try:
            return super().forward_backward(batch, parts)
        except (AssertionError, RuntimeError) as error:
            self._blame_upstream(error)
            raise

    def _hook(self, seed: int) -> tuple[Any, Hook]:
        """Return the hook of the method, and the state that goes with it."""
        method, settings = self.strategy.method, self.strategy.settings
        if method == "noop":
            return self.observer, leave_alone
        if method == "none":
            return None, _observed(allreduce_hook, self.observer, None)
        if method in POWERSGD_HOOKS:
            state = torch_powersgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=settings["rank"],
                start_powerSGD_iter=settings["start_step"],
                use_error_feedback=settings["error_feedback"],
                orthogonalization_epsilon=EPSILON,
            )
            hook = _one_by_one(POWERSGD_HOOKS[method])
            return state, _observed(hook, self.observer, state)
        codec = CODECS[method](settings)
        memory = new_memory(settings, dist.get_world_size())
        return Compression(codec, memory, seed, self.observer), compress

    def _blame_upstream(self, error: Exception) -> None:
        """Raise Unsupported where torch's own hook fails, as the batched one does in 2.13."""
        if self.strategy.method != "powersgd-batched" or classify(error) == "peer":
            return
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).strip().split("\n")[0] or f"no message, raised in {place.name}"
        raise Unsupported(
            f"torch {torch.__version__}'s batched PowerSGD hook fails: "
            f"{type(error).__name__}, {said}"
        ) from error


POWERSGD_HOOKS: dict[str, Hook] = {
    "powersgd": torch_powersgd.powerSGD_hook,
    "powersgd-batched": torch_powersgd.batched_powerSGD_hook,
}


def _one_by_one(hook: Hook) -> Hook:
    """Return torch's PowerSGD hook so that over gloo a bucket waits for the one before.

    The hook starts its second and third collective from callbacks, which gloo runs on several
    threads: with two buckets under way the ranks start them in different orders, and each receives
    what the other meant for another bucket.
    """
    before: list[torch.futures.Future[torch.Tensor]] = []

    def waiting(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if before and dist.get_backend() == "gloo":
            before.pop().wait()
        future = hook(state, bucket)
        before[:] = [future]
        return future

    return waiting


def _observed(hook: Hook, observer: Observer, powersgd: Any) -> Hook:
    """Return torch's hook with what it hands over counted.

    ``powersgd``: its state, which counts elements after compression itself; None: all of the bucket
    is handed over.
    """

    def observed(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        observer.see(bucket)
        width = bucket.buffer().element_size()
        counted = 0 if powersgd is None else powersgd.total_numel_after_compression
        compresses = powersgd is not None and powersgd.iter >= powersgd.start_powerSGD_iter
        future = hook(state, bucket)
        if compresses:
            sent = powersgd.total_numel_after_compression - counted
        else:
            sent = bucket.buffer().numel()
        observer.count("all_reduce", sent * width)
        if bucket.is_last():
            observer.end_step()
        return future

    return observed


def traffic_of(training: object) -> CompressionTraffic | None:
    """Return what a compressed training handed over in its last step; None: it is another one."""
    return training.observer.traffic if isinstance(training, CompressedTraining) else None


def _refuse_sparse_gradients(module: torch.nn.Module, strategy: Compressed) -> None:
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = [name for name, m in module.named_modules() if isinstance(m, kinds) and m.sparse]
    if sparse:
        raise UsageError(
            f"The workload's {sparse[0] or type(module).__name__} has sparse gradients, which no "
            f"communication hook supports ({strategy.method}). Give sparse=False, or run suite ddp."
        )
