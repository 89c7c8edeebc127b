"""The methods of gradient compression as data: their names, and the parameters each one takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalebench.errors import unknown_name

Settings = Mapping[str, Any]

Communication = Literal["all_reduce", "all_gather", "none"]


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        about: What it sends, a few words.
        collective: How its main part is communicated.
        defaults: Parameter → the value it has when none is given; no other is accepted.
        of_torch: torch's own hook: encoding and decoding cannot be separated from outside.
    """

    about: str
    collective: Communication
    defaults: Settings
    of_torch: bool = False


METHODS: dict[str, Method] = {
    "none": Method("torch's all-reduce of float32", "all_reduce", {}, of_torch=True),
    "noop": Method("nothing is sent: the bound", "none", {}),
    "fp16": Method("half precision", "all_reduce", {"error_feedback": False}),
    "bf16": Method("bfloat16", "all_reduce", {"error_feedback": False}),
    "quantise": Method(
        "bits evenly spaced between a chunk's extremes",
        "all_gather",
        {"bits": 8, "chunk": 1024, "rounding": "nearest", "error_feedback": False},
    ),
    "sign": Method(
        "one bit, and a size per chunk", "all_gather", {"chunk": 1024, "error_feedback": True}
    ),
    "terngrad": Method(
        "minus, zero or plus, chosen at random",
        "all_gather",
        {"chunk": 1024, "error_feedback": False},
    ),
    "qsgd": Method(
        "a level of the chunk's norm, chosen at random",
        "all_gather",
        {"bits": 4, "chunk": 256, "error_feedback": False},
    ),
    "top-k": Method(
        "the largest elements, with indices", "all_gather", {"ratio": 0.01, "error_feedback": True}
    ),
    "random-k": Method(
        "elements at shared random indices", "all_reduce", {"ratio": 0.01, "error_feedback": True}
    ),
    "random-projection": Method(
        "a subsampled randomized Hadamard transform, the same on all ranks",
        "all_reduce",
        {"ratio": 0.1, "error_feedback": True},
    ),
    "threshold": Method(
        "elements that reach a threshold, with indices",
        "all_gather",
        {"threshold": 1e-3, "error_feedback": True},
    ),
    "dgc": Method(
        "top-k of the momentum",
        "all_gather",
        {"ratio": 0.01, "momentum": 0.9, "clip_norm": 1.0, "warmup_steps": 4},
    ),
    "powersgd": Method(
        "matrices of low rank, torch's hook",
        "all_reduce",
        {"rank": 2, "start_step": 2, "error_feedback": True},
        of_torch=True,
    ),
    "powersgd-batched": Method(
        "the bucket as one matrix of low rank, torch's hook",
        "all_reduce",
        {"rank": 2, "start_step": 2, "error_feedback": True},
        of_torch=True,
    ),
    "count-sketch": Method(
        "a count sketch, then the elements it shows to be large",
        "all_reduce",
        {"rows": 3, "columns_per_kept": 4, "ratio": 0.01, "error_feedback": True},
    ),
}
"""Name → method: the only list of them."""

FLOAT32_BITS = 32


def nominal_ratio(method: str, settings: Settings) -> float | None:
    """Return what a method's name promises: bits over float32's, scales and indices apart.

    None: it promises nothing that does not depend on the values or the shapes.
    """
    if method in ("fp16", "bf16"):
        return 16 / FLOAT32_BITS
    if method in ("none", "noop"):
        return 1.0 if method == "none" else 0.0
    bits = {"sign": 1, "terngrad": 2}.get(method, settings.get("bits"))
    if bits is not None:
        return float(bits) / FLOAT32_BITS
    ratio = settings.get("ratio")
    return None if ratio is None else float(ratio)


def first_compressed_step(settings: Settings) -> int:
    """Return the step from which on a method compresses as far as it was asked to."""
    return int(settings.get("start_step") or settings.get("warmup_steps") or 0)


def vectors_kept(settings: Settings) -> int:
    """Return how many float32 per parameter a rank keeps between steps: velocity and residual."""
    return 2 if "momentum" in settings else int(bool(settings.get("error_feedback")))


VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bits": (lambda x: 1 <= x <= 8, "a whole number from 1 to 8"),
    "ratio": (lambda x: 0 < x <= 1, "more than 0 and at most 1"),
    "chunk": (lambda x: x >= 8 and x % 8 == 0, "a multiple of 8"),
    "rank": (lambda x: x >= 1, "at least 1"),
    "start_step": (lambda x: x >= 2, "at least 2: DDP rebuilds its buckets before that"),
    "threshold": (lambda x: 0 < x < float("inf"), "more than 0"),
    "momentum": (lambda x: 0 <= x < 1, "at least 0 and below 1"),
    "clip_norm": (lambda x: 0 < x < float("inf"), "more than 0"),
    "warmup_steps": (lambda x: x >= 0, "at least 0"),
    "rows": (lambda x: x >= 1 and x % 2 == 1, "an odd number"),
    "columns_per_kept": (lambda x: x >= 1, "at least 1"),
}
"""Parameter → what makes a value of it valid, and the same in words."""


def resolve(method: str, given: Settings) -> dict[str, Any]:
    """Return all parameters of a method, the defaults filled in.

    Args:
        method: Name.
        given: Parameters; those that are None count as not given.

    Raises:
        ValueError: No such method, a parameter that it does not take, or a value that is not
            valid; one line.
    """
    if method not in METHODS:
        raise ValueError(str(unknown_name("compression method", method, METHODS)))
    defaults = METHODS[method].defaults
    asked = {name: value for name, value in given.items() if value is not None}
    for name, value in asked.items():
        if name not in defaults:
            takes = ", ".join(defaults) or "no parameter"
            raise ValueError(f"{method} has no {name}; it takes {takes}")
        is_valid, words = VALID.get(name, (lambda _: True, ""))
        if not is_valid(value):
            raise ValueError(f"{name} is {value}; give {words}")
    if method == "qsgd" and asked.get("bits") == 1:
        raise ValueError("bits is 1; qsgd needs 2 to 8, one of them for the sign")
    return {**defaults, **asked}
