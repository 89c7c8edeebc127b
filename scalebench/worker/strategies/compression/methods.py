"""The methods that scalebench carries out itself: name → codec, and which memory goes with it."""

from collections.abc import Callable
from typing import Any

import torch

from scalebench.worker.strategies.compression.codec import Codec, Memory, NoMemory
from scalebench.worker.strategies.compression.memory import ErrorFeedback, MomentumCorrection
from scalebench.worker.strategies.compression.projection import RandomProjection
from scalebench.worker.strategies.compression.quantise import Cast, Qsgd, Quantise, Sign, TernGrad
from scalebench.worker.strategies.compression.sparse import (
    CountSketch,
    Dgc,
    RandomK,
    Threshold,
    TopK,
)

Settings = dict[str, Any]

CODECS: dict[str, Callable[[Settings], Codec]] = {
    "fp16": lambda s: Cast(torch.float16),
    "bf16": lambda s: Cast(torch.bfloat16),
    "quantise": lambda s: Quantise(s["bits"], s["chunk"], s["rounding"]),
    "sign": lambda s: Sign(s["chunk"]),
    "terngrad": lambda s: TernGrad(s["chunk"]),
    "qsgd": lambda s: Qsgd(s["bits"], s["chunk"]),
    "top-k": lambda s: TopK(s["ratio"]),
    "random-k": lambda s: RandomK(s["ratio"], scaled=not s["error_feedback"]),
    "random-projection": lambda s: RandomProjection(s["ratio"], scaled=not s["error_feedback"]),
    "threshold": lambda s: Threshold(s["threshold"]),
    "dgc": lambda s: Dgc(s["ratio"], s["warmup_steps"]),
    "count-sketch": lambda s: CountSketch(s["rows"], s["columns_per_kept"], s["ratio"]),
}
"""Name → what makes the codec of its parameters, all of which are given."""


def new_memory(settings: Settings, world_size: int) -> Memory:
    """Return what a rank keeps between steps: momentum, error feedback, or nothing."""
    if "momentum" in settings:
        return MomentumCorrection(settings["momentum"], settings["clip_norm"], world_size)
    return ErrorFeedback() if settings["error_feedback"] else NoMemory()
