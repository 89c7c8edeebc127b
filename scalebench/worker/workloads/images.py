"""Images made by formula, with a class that a convolution can learn."""

import math

import numpy as np
import torch


def make_images(
    num_samples: int, side: int, num_classes: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy gratings whose orientation and wavelength tell the class.

    Class k of K has its stripes at the angle πk/K, 10 pixels apart when k is even and 6 when it
    is odd. Phase, contrast and colour are random, so that neither one pixel nor the mean of an
    image tells anything. Sample i depends on ``seed`` and i alone.

    Args:
        num_samples: Images to make; sample i has class i mod K.
        side: Height and width, pixels.
        num_classes: K.
        seed: Of the random part.

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
