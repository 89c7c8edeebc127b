"""Points of a calibration whose law is known."""

from scalebench.costmodel.links.profile import point_of
from scalebench.records.measured.probes import TimedTransfer
from scalebench.session.calibration.sweeps import sizes_up_to
from scalebench.spec.probes import Transfer

ALPHA_S, BANDWIDTH = 20e-6, 1e9


def point(size_bytes, time_s, algorithm="backend", operation="all_reduce", num_ranks=2, wrong=0):
    transfer = Transfer(operation=operation, size_bytes=size_bytes, algorithm=algorithm)
    timed = TimedTransfer(
        transfer=transfer,
        size_bytes=size_bytes,
        time_s=(time_s,) * 5,
        each_s=(time_s,) * 10,
        num_elements=size_bytes // 4,
        num_wrong=wrong,
    )
    return point_of(timed, num_ranks, "")


def line(algorithm="backend"):
    """All-reduces of two ranks by the ring's law."""
    sizes = sizes_up_to(1 << 22)
    return [point(size, 2 * ALPHA_S + size / BANDWIDTH, algorithm) for size in sizes]
