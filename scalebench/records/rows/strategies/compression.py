"""What compressed training sent, cost and did to the gradient and the loss."""

from typing import Any

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart
from scalebench.stats import Estimate


class LossComparison(RowPart):
    """A method's loss next to that of ``none``, the exact all-reduce.

    Attributes:
        equal_steps: Steps that all methods of the suite trained.
        loss_after_steps: After these.
        equal_s: Seconds that all methods trained, steps times the clean step.
        loss_after_s: After these.
        target_loss: What ``none`` has after the equal steps.
        steps_to_target: Until a method has it; None: not in this run.
    """

    equal_steps: int
    loss_after_steps: FiniteFloat
    loss_of_none_after_steps: FiniteFloat
    equal_s: FiniteFloat
    loss_after_s: FiniteFloat
    loss_of_none_after_s: FiniteFloat
    target_loss: FiniteFloat
    steps_to_target: int | None
    time_to_target_s: FiniteFloat | None
    time_of_none_to_target_s: FiniteFloat | None


class CompressionFigures(RowPart):
    """A row's compression; bytes and seconds per rank and step.

    Attributes:
        collective: By which messages are exchanged.
        gradient_bytes: The gradients before compression.
        payload_bytes: What a rank hands to the collectives.
        wire_bytes: What it sends by the ring's law.
        payload_ratio: Payload over gradients.
        nominal_ratio: The same by the method's definition; None: it depends on the gradient.
        gradient_error: ‖g − g_exact‖ / ‖g_exact‖ of the mean gradient.
        gradient_cosine: Between the two.
        gradient_error_step: The step in which they were compared.
        codec_s: Encoding and decoding, of clean steps; means over the ranks.
        communicate_s: Union of the collectives, of traced steps.
        transfer_s: The same without waiting for other ranks.
        break_even_byte_per_s: Bandwidth below which the method pays if nothing overlaps.
        unavailable: Name of a null field → why it is null.
        losses: Only of a suite that has ``none``, as the fields below.
        step_ratio_to_none: The step over that of ``none``.
        break_even_replayed_byte_per_s: Bandwidth below which the step is predicted to be shorter.
        link_byte_per_s: What the calibrated link gives.
    """

    method: str
    settings: dict[str, Any]
    collective: str
    num_buckets: int
    gradient_bytes: int
    payload_bytes: int
    wire_bytes: int
    payload_ratio: FiniteFloat | None
    nominal_ratio: FiniteFloat | None
    gradient_error: FiniteFloat | None
    gradient_cosine: FiniteFloat | None
    gradient_error_step: int | None
    encode_s: Estimate | None
    decode_s: Estimate | None
    codec_s: Estimate | None
    communicate_s: Estimate | None
    transfer_s: Estimate | None
    break_even_byte_per_s: Estimate | None
    unavailable: dict[str, str] = {}
    losses: LossComparison | None = None
    step_ratio_to_none: Estimate | None = None
    break_even_replayed_byte_per_s: Estimate | None = None
    link_byte_per_s: FiniteFloat | None = None
