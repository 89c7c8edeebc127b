"""What runs inside the processes of a user's own training script: it watches the steps.

Loaded by the user's interpreter, which need not have scalebench: the standard library and torch
alone, Python 3.9, torch 2.4. `start` is the program; nothing here imports the rest of scalebench.

`step` is what a script may say of its steps itself.
"""

from __future__ import annotations

from typing import Any

current: Any = None
"""The watch of this process; None: scalebench does not run this script."""


def step(samples: int | None = None) -> None:
    """Say that a training step is over; without scalebench around the script, do nothing.

    From the first call on, steps are counted by these calls and by nothing else.

    Args:
        samples: Samples that this rank trained on in the step; None: as the DataLoader counted.
    """
    if current is not None:
        current.stepped(samples)
