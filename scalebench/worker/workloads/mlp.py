"""A plain perceptron that tells noisy clusters apart."""

import itertools
import math

import torch
from torch import nn

from scalebench.spec.presets import MlpShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import (
    Batch,
    ResidentBatches,
    mean_cross_entropy,
    num_synthetic_samples,
)
from scalebench.worker.workloads.loaded import HeldOut

CENTRE_RADIUS = 3.0
"""Distance of a cluster's centre from the origin, in standard deviations of the noise.

Two centres are then √2 times as far apart: neighbours overlap a little at every number of
features, and the loss keeps falling for a while.
"""


class Mlp(nn.Module):
    """Hidden layers with GELU, and a linear layer on top."""

    def __init__(self, shape: MlpShape) -> None:
        super().__init__()
        sizes = [shape.features, *[shape.width] * shape.layers]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, outputs), nn.GELU())
            for inputs, outputs in itertools.pairwise(sizes)
        )
        self.classify = nn.Linear(shape.width, shape.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, features]`` to logits ``[B, classes]``."""
        for block in self.blocks:
            x = block(x)
        return self.classify(x)  # type: ignore[no-any-return]


def make_clusters(
    num_samples: int, num_features: int, num_classes: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of Gaussian clusters, one cluster per class; they depend on ``seed`` alone.

    Returns:
        Points ``[num_samples, num_features]``, float32; labels ``[num_samples]``, int64, sample i
        having class i mod ``num_classes``. Both on CPU.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    centres = torch.randn(num_classes, num_features, generator=generator, device="cpu")
    centres *= CENTRE_RADIUS / math.sqrt(num_features)
    points = torch.randn(num_samples, num_features, generator=generator, device="cpu")
    labels = torch.arange(num_samples, device="cpu") % num_classes
    return points.add_(centres[labels]), labels


def build_mlp(spec: MlpShape, shard: Shard) -> Workload:
    """Return the perceptron and its clusters.

    Batches are (points ``[B, features]`` float32, labels ``[B]`` int64).

    Raises:
        UsageError: Too few samples for a global batch.
    """
    num_samples = num_synthetic_samples(spec.batch_size)
    points, labels = (
        tensor.to(shard.device)
        for tensor in make_clusters(num_samples, spec.features, spec.classes, shard.seed)
    )

    def gather(index: torch.Tensor) -> Batch:
        return points.index_select(0, index), labels.index_select(0, index)

    def held_out(count: int) -> list[torch.Tensor]:
        more = make_clusters(num_samples + count, spec.features, spec.classes, shard.seed)
        return [tensor[num_samples:].to(shard.device) for tensor in more]

    module = Mlp(spec)
    return Workload(
        module=module,
        batches=ResidentBatches(spec.name, num_samples, shard, gather),
        loss=mean_cross_entropy,
        blocks=tuple(module.blocks),
        layers=(*module.blocks, module.classify),
        evaluation=HeldOut(held_out),
        tensor_plan=spec.tensor_plan,
    )
