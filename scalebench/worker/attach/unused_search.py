"""What DDP's search for unused parameters costs, and whether it finds any.

With ``find_unused_parameters`` DDP walks through the autograd graph after every forward pass. It
does so at the end of its ``forward``, in one method, which is timed while steps are traced.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from torch.nn.parallel import DistributedDataParallel

METHOD = "_post_forward"


class UnusedSearch:
    """Times the searches.

    Attributes:
        seconds: Of all searches so far.
        num_searches: How many there were.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_searches = 0
        self._original: Any = None

    def begin(self) -> None:
        """Time them from now on, where this version of torch has the method."""
        original = vars(DistributedDataParallel).get(METHOD)
        if original is None or self._original is not None:
            return
        self._original = original

        @functools.wraps(original)
        def timed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not searches(module):
                return original(module, *args, **kwargs)
            before = time.perf_counter()
            answer = original(module, *args, **kwargs)
            self.seconds += time.perf_counter() - before
            self.num_searches += 1
            return answer

        setattr(DistributedDataParallel, METHOD, timed)

    def end(self) -> None:
        """Leave DDP as it was."""
        if self._original is not None:
            setattr(DistributedDataParallel, METHOD, self._original)
            self._original = None

    def found(self, num_steps: int) -> float | None:
        """Return the seconds that a step spends on it; None: there was no search to time."""
        return self.seconds / num_steps if self.num_searches and num_steps else None


def searches(module: Any) -> bool:
    """Tell whether a DDP module looks for unused parameters in every step."""
    asked = getattr(module, "find_unused_parameters", False)
    return bool(asked) and not getattr(module, "static_graph", False)


def unused_bytes(module: Any) -> int | None:
    """Return the size of the parameters that the last search found unused; None: not known.

    Source: DDP's own logging data, ``unused_parameter_size``.
    """
    try:
        told = module._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return None
    return int(told.get("unused_parameter_size", 0)) if told.get("iteration") else None
