"""``scalebench.step()``: what a script may say of its steps itself. Imports nothing."""

from __future__ import annotations

from typing import Any

watch: Any = None
"""The watch of this process; None: scalebench does not run this script."""


def step(samples: int | None = None) -> None:
    """Say that a training step is over; without scalebench around the script, do nothing.

    From the first call on, steps are counted by these calls and by nothing else.

    Args:
        samples: Samples that this rank trained on in the step; None: as the DataLoader counted.
    """
    if watch is not None:
        watch.stepped(samples)
