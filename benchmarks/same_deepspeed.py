"""The suite's case ``deepspeed-zero2-accumulate-4`` as a script of a user's own.

``-- -m benchmarks.same_deepspeed --batch 16``, under torchrun's environment: DeepSpeed as its
documentation writes it, with the case's model, batches, optimizer and configuration. ``--batch``
is that of all ranks together.
"""

import os
import sys

import torch

from scalebench.spec.presets import resolve_workload
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.batches import endless

CASE = "deepspeed-zero2-accumulate-4"
WORKLOAD = "gpt-tiny"
ACCUMULATE = 4
BUCKET_ELEMENTS = 25 * 2**20 // 4


def config(rank_batch: int) -> dict[str, object]:
    """Return what DeepSpeed is configured with."""
    return {
        "train_micro_batch_size_per_gpu": rank_batch // ACCUMULATE,
        "gradient_accumulation_steps": ACCUMULATE,
        "gradient_clipping": 0.0,
        "steps_per_print": sys.maxsize,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
        },
    }


def main() -> None:
    """Train until scalebench has seen enough."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank_batch = int(sys.argv[sys.argv.index("--batch") + 1]) // ranks
    # Training does not use the extension that DeepSpeed would compile now.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    device = torch.device("cpu")
    workload = build_workload(
        resolve_workload(WORKLOAD, "cpu"), Shard(rank, ranks, rank_batch, 0, device)
    )
    engine, *_ = deepspeed.initialize(
        model=workload.module,
        optimizer=torch.optim.AdamW(workload.module.parameters(), lr=1e-3, fused=True),
        config=config(rank_batch),
    )
    for batch in endless(workload.batches, device, rank_batch):
        for microbatch in zip(*(part.chunk(ACCUMULATE) for part in batch), strict=True):
            engine.backward(workload.loss(engine, microbatch))
            engine.step()


if __name__ == "__main__":
    main()
