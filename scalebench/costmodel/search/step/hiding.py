"""What computation does not hide of operations that run beside it."""

import numpy as np

from scalebench.costmodel.search.space import Floats, Ints


def hidden_behind(parts: Ints, each_s: Floats, window_s: Floats) -> Floats:
    """Return what is not hidden of equal operations, one asked for after each part of a window.

    `scalebench.costmodel.replay` with ready times at an even pace: the link is late from the first
    one on, or only the last one is left: ``max(n·x − T·(1 − 1/n), x)``.
    """
    late = parts * each_s - window_s * (1 - 1 / np.maximum(parts, 1))
    return np.maximum(late, each_s)
