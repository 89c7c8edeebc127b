"""DDP with compressed gradients."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.compression import METHODS, resolve
from scalebench.spec.strategies.execution import Execution


class Compressed(Execution):
    """DDP whose gradients are compressed on the way: a communication hook.

    Parameters that are None have the method's own defaults; see
    `scalebench.spec.compression.METHODS`, and the method's file in
    ``worker/strategies/compression`` for its source, wire format and error.

    Attributes:
        method: Name of the method.
        bucket_mb: Size of a gradient bucket in MiB.
        error_feedback: Add to the next step what compression left out of this one.
        bits: How many bits an element has on the wire (``quantise``, ``qsgd``).
        chunk: Elements that share a scale; a multiple of 8.
        rounding: To the nearest value, or by chance and unbiased.
        ratio: Part of the elements that is sent.
        threshold: Smallest element that is sent.
        momentum: The momentum that ``dgc`` corrects for.
        clip_norm: To which ``dgc`` clips the gradient of a bucket.
        warmup_steps: Over which ``dgc`` comes down to its ratio.
        rank: The rank of the matrices that stand for a gradient (``powersgd``).
        start_step: From which ``powersgd`` compresses.
        rows: How many rows a sketch has.
        columns_per_kept: How many columns a sketch has for each element that is sent.
    """

    kind: Literal["compressed"] = "compressed"
    about = f"DDP with compressed gradients: {', '.join(METHODS)}"
    keeps_whole_model = True
    operations = ("all_reduce", "all_gather")
    method: str
    bucket_mb: float = Field(25.0, gt=0)
    error_feedback: bool | None = None
    bits: int | None = None
    chunk: int | None = None
    rounding: Literal["nearest", "stochastic"] | None = None
    ratio: float | None = None
    threshold: float | None = None
    momentum: float | None = None
    clip_norm: float | None = None
    warmup_steps: int | None = None
    rank: int | None = None
    start_step: int | None = None
    rows: int | None = None
    columns_per_kept: int | None = None

    @property
    def communicates(self) -> bool:
        """Not without a method that sends anything."""
        return self.method != "noop"

    @property
    def settings(self) -> dict[str, Any]:
        """The method's parameters, the defaults filled in."""
        own = {*Compressed.model_fields} - {*Execution.model_fields}
        given = self.model_dump(include=own - {"kind", "method", "bucket_mb"})
        return resolve(self.method, given)

    @model_validator(mode="after")
    def _method_and_parameters_are_valid(self) -> Self:
        _ = self.settings
        return self
