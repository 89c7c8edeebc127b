"""Kernels that may be communication though nothing says it for certain: name → seconds."""

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.communication_kernels import is_known_to_compute, may_be_communication
from scalebench.trace.events import Events
from scalebench.trace.spans import Indices, named


def called_like_communication(events: Events, kernels: Indices) -> dict[str, float]:
    """Return those of the kernels, which count as computation, whose name suggests it."""
    return _seconds(events, kernels, named(events, [may_be_communication(n) for n in events.names]))


def on_their_own_stream(events: Events, kernels: Indices) -> dict[str, float]:
    """Return those that never run on a stream of kernels that are known to compute.

    Where none is known to, that is the stream with the most different kernels.
    """
    streams, names = events.thread[kernels], events.name[kernels]
    computes = named(events, [is_known_to_compute(name) for name in events.names])
    busy = np.unique(streams[computes[kernels]])
    if not len(busy):
        of_stream = [(len(np.unique(names[streams == s])), s) for s in np.unique(streams)]
        busy = np.array([max(of_stream)[1]] if of_stream else [])
    elsewhere = names[np.isin(streams, busy)]
    return _seconds(events, kernels, ~np.isin(events.name, elsewhere))


def _seconds(events: Events, kernels: Indices, wanted: NDArray[np.bool_]) -> dict[str, float]:
    chosen = kernels[wanted[kernels]]
    seconds = (events.end_ns - events.start_ns)[chosen] / 1e9
    return {
        events.names[code]: float(seconds[events.name[chosen] == code].sum())
        for code in np.unique(events.name[chosen])
    }
