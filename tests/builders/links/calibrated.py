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


def line(algorithm="backend", alpha_s=ALPHA_S, bandwidth=BANDWIDTH, num_ranks=2):
    """All-reduces of N ranks by the ring's law."""
    n = num_ranks
    return [
        point(
            size, 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * size / bandwidth, algorithm, num_ranks=n
        )
        for size in sizes_up_to(1 << 22)
    ]
