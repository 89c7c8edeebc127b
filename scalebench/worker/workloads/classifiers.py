"""A CIFAR-style residual network that tells gratings apart; a perceptron for noisy clusters.

Shape legend: B samples, C channels, S side of the feature map.
"""

import itertools
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from scalebench.errors import UsageError
from scalebench.spec.presets import CnnShape, MlpShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import (
    Batch,
    ResidentBatches,
    mean_cross_entropy,
    num_synthetic_samples,
)
from scalebench.worker.workloads.loaded import HeldOut


def make_images(
    num_samples: int, side: int, num_classes: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy gratings whose orientation and wavelength tell the class.

    Class k of K has its stripes at the angle πk/K, 10 pixels apart when k is even and 6 when it
    is odd. Phase, contrast and colour are random, so that neither one pixel nor the mean of an
    image tells anything. Sample i depends on ``seed`` and i alone.

    Sample i has class i mod ``num_classes``, K. ``side``: height and width, pixels.

    Returns:
        Images ``[num_samples, 3, side, side]``, uint8; labels ``[num_samples]``, int64. Both on
        CPU.
    """
    labels = torch.arange(num_samples, device="cpu") % num_classes
    generator = torch.Generator(device="cpu").manual_seed(seed)
    look = torch.rand(num_samples, 4, 1, 1, generator=generator, device="cpu")
    phase, colour = 2 * math.pi * look[:, 0], 0.3 + 0.7 * look[:, 1:]

    angle = (math.pi / num_classes * labels).view(-1, 1, 1)
    wavelength = torch.where(labels % 2 == 0, 10.0, 6.0).view(-1, 1, 1)
    pixel = torch.arange(side, dtype=torch.float32, device="cpu")
    along = pixel * angle.cos() + pixel.view(-1, 1) * angle.sin()  # [num_samples, side, side]
    wave = torch.sin(2 * math.pi / wavelength * along + phase)

    # Noise of 0..127 and stripes of 0..128 fill a byte. NumPy, in bytes, because drawing the
    # noise is nearly all of the work and torch takes five times as long.
    noise = np.random.default_rng(seed).integers(
        0, 256, size=(num_samples, 3, side, side), dtype=np.uint8
    )
    images = torch.from_numpy(noise).bitwise_right_shift_(1)
    for channel in range(3):
        images[:, channel] += (64 + 64 * colour[:, channel] * wave).to(torch.uint8)
    return images, labels


HELD_OUT_SEED = 2**31
"""No run's seed draws these images."""


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    # No bias: the normalisation that follows has one.
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _norm(channels: int) -> nn.GroupNorm:
    """Normalise within a sample: the gradient does not depend on who shares its batch."""
    return nn.GroupNorm(math.gcd(8, channels), channels)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2016, figure 2).

    The first block of a stage halves the side and projects the shortcut to its channels with a
    1x1 convolution (option B of §3.3).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = _norm(outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.norm2 = _norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), _norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, C_in, S, S]`` to ``[B, C_out, S/stride, S/stride]``."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class _Classifier(nn.Linear):
    """A linear layer on the mean of the feature map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, C, S, S]`` to logits ``[B, classes]``."""
        return super().forward(x.mean((2, 3)))


class Cnn(nn.Module):
    """A stem, three stages of n blocks, and a linear layer: depth 6n + 2 (He et al. 2016, §4.2)."""

    def __init__(self, shape: CnnShape) -> None:
        super().__init__()
        width = shape.width
        self.stem = nn.Sequential(_conv(3, width, 3), _norm(width), nn.ReLU())
        blocks, channels = [], width
        for stage in (width, 2 * width, 4 * width):
            for _ in range((shape.depth - 2) // 6):
                blocks.append(ResidualBlock(channels, stage, stage // channels))
                channels = stage
        self.blocks = nn.ModuleList(blocks)
        self.classify = _Classifier(channels, shape.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images ``[B, 3, S, S]`` to logits ``[B, classes]``."""
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.classify(x)  # type: ignore[no-any-return]


def build_cnn(spec: CnnShape, shard: Shard) -> Workload:
    """Return the residual network and its images.

    Batches are (images ``[B, 3, S, S]`` float32 in -1..1, labels ``[B]`` int64).

    Raises:
        UsageError: The depth is not 6n + 2; too few samples for a global batch.
    """
    if spec.depth % 6 != 2:
        lower = spec.depth - (spec.depth - 2) % 6
        raise UsageError(
            f"{spec.name}: the depth of a cnn is 6n + 2, and {spec.depth} is not. "
            f"Choose {lower} or {lower + 6}."
        )
    num_samples = num_synthetic_samples(spec.batch_size)
    images, labels = (
        tensor.to(shard.device)
        for tensor in make_images(num_samples, spec.image, spec.classes, shard.seed)
    )

    def gather(index: torch.Tensor) -> Batch:
        return _scaled(images.index_select(0, index)), labels.index_select(0, index)

    def held_out(count: int) -> list[torch.Tensor]:
        pixels, of_pixels = make_images(count, spec.image, spec.classes, HELD_OUT_SEED)
        return [_scaled(pixels.to(shard.device)), of_pixels.to(shard.device)]

    module = Cnn(spec)
    return Workload(
        module=module,
        batches=ResidentBatches(spec.name, num_samples, shard, gather),
        loss=mean_cross_entropy,
        blocks=tuple(module.blocks),
        layers=(module.stem, *module.blocks, module.classify),
        evaluation=HeldOut(held_out),
    )


def _scaled(pixels: torch.Tensor) -> torch.Tensor:
    """Map bytes to -1..1, float32."""
    return (pixels - 127.5).mul_(1 / 127.5)


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
