"""Ranks that train with every compression method: run as a program by `test_compression`.

They inspect all methods one after the other, then some of them again with something planted.
"""

from contextlib import nullcontext
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from scalebench.spec import Compressed
from scalebench.spec.compression import METHODS
from scalebench.spec.presets import MlpShape
from scalebench.worker.inspection.compressed import inspect_compressed
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.process.context import RankContext, connected
from scalebench.worker.strategies.compressed import CompressedTraining
from scalebench.worker.strategies.compression import codec, hook, memory
from tests.integration.programs import inspecting, main

WORLD_SIZES = (2, 3)
MODEL = MlpShape(name="mlp-test", layers=2, width=48, features=40, batch_size=24)
BUCKET_MB = 0.006  # several buckets, and others after the first step than before

VARIANTS = {
    **{method: {} for method in METHODS if method != "powersgd-batched"},
    "top-k": {"ratio": 0.05},
    "threshold": {"threshold": 0.01},
    "count-sketch": {"ratio": 0.05},
    "quantise": {"bits": 4, "error_feedback": True, "chunk": 64},
    "quantise stochastic": {"bits": 2, "rounding": "stochastic", "chunk": 64},
    "random-k scaled": {"error_feedback": False, "ratio": 0.1},
    "random-projection scaled": {"error_feedback": False},
    "dgc": {"ratio": 0.02},
}
"""Name → parameters; the method is the first word."""


def cell_of(variant, world_size, **strategy):
    settings = {"method": variant.split()[0], "bucket_mb": BUCKET_MB, **VARIANTS[variant]}
    return inspecting(Compressed(**settings, **strategy), MODEL, world_size, 24)


def inspected(context):
    found = inspect_compressed(context)
    error = found.gradient_error
    return {
        "verification": found.verification.model_dump(),
        "error": None if error is None else error.model_dump(),
    }


def traffic(context):
    training = trained(context, 7)
    sizes = [parameter.numel() for parameter in training.module.parameters()]
    layout = training.observer.layout_at(training.observer.step)
    return {
        **training.observer.traffic.model_dump(),
        "bucket_sizes": [sum(sizes[key] for key in keys) for keys in layout],
        "layouts": {str(k): v for k, v in training.observer.layouts.items()},
    }


def trained(context, num_steps, other_hook=None):
    workload = fresh_workload(context)
    replaced = patch.object(CompressedTraining, "_hook", lambda *_: (None, other_hook))
    with replaced if other_hook else nullcontext():
        training = CompressedTraining(context.cell.strategy, workload, context)
    for _, batch in zip(range(num_steps), workload.batches, strict=False):
        training.step(batch)
    return training


def same_as_torch(context):
    ours = dict(trained(context, 3).gradients())
    theirs = dict(trained(context, 3, default_hooks.fp16_compress_hook).gradients())
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def spoiled_end(original):
    def end(self, exchange):
        original(self, exchange)
        exchange.buffer[0] = torch.nextafter(exchange.buffer[0], torch.tensor(9.0))

    return end


def moving(original, by):
    def init(self, *arguments):
        original(self, *arguments)
        for parameter in self.module.parameters():
            parameter.register_hook(by)

    return init


IN_BFLOAT16 = {
    "rounds elsewhere": lambda g: g * (1 + 2**-8 * torch.randn_like(g)),
    "is a third too large": lambda g: g * 1.3,
}
"""What gradients do → how; the first is half a unit in the last place, as other kernels do it."""


def forgetful(self, bucket):
    return bucket.gradient.clone()


def drawn_elsewhere(self, device):
    return torch.Generator(device).manual_seed(1)


PLANTED = {
    "forgets": ("sign", memory.ErrorFeedback, "corrected", forgetful),
    "other randoms": ("random-k", codec.Draw, "shared", drawn_elsewhere),
    "one bit": ("top-k", hook.Compression, "_end", spoiled_end(hook.Compression._end)),
}
"""What is planted on rank 1 → method, and what is replaced by what."""


def run_rank(folder, rank, world_size):
    report = {"inspected": {}, "traffic": {}, "planted": {}}
    first = cell_of("none", world_size)
    with connected(first, rank, folder / f"store{world_size}") as joined:

        def context(variant, **strategy):
            cell = cell_of(variant, world_size, **strategy)
            return RankContext(cell, rank, rank, joined.device, joined.control)

        for variant in VARIANTS:
            report["inspected"][variant] = inspected(context(variant))
            report["traffic"][variant] = traffic(context(variant))
        if world_size == 2:
            for what, (variant, *planted) in PLANTED.items():
                with patch.object(*planted) if rank == 1 else nullcontext():
                    report["planted"][what] = inspected(context(variant))
            for what, by in IN_BFLOAT16.items():
                init = moving(CompressedTraining.__init__, by)
                with patch.object(CompressedTraining, "__init__", init):
                    report["planted"][what] = inspected(context("sign", autocast=True))
        report["same as torch"] = same_as_torch(context("fp16"))
        dist.barrier()
    return report


if __name__ == "__main__":
    main(run_rank)
