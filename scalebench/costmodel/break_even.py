"""At which bandwidth compressing gradients pays: the serial limit.

Compression pays where the time that its smaller messages save on the wire exceeds what encoding and
decoding take. With nothing overlapped and latencies alike, both are equal at::

    B* = (2(N−1)/N·D − W) / (t_encode + t_decode)

W: bytes that a rank sends for the compressed gradient: ``2(N−1)/N·D_c`` where the code is
all-reduced, ``(N−1)·D_c`` where it is all-gathered. Slower links than B* win; B* ≤ 0 means never.

Source: the bandwidth terms of Thakur et al. 2005 and Patarasuk & Yuan 2009; Agarwal et al. 2022
("On the utility of gradient compression in distributed training systems", MLSys) weigh the same
costs. Overlap with backward hides transfer first and moves the true break-even down.
"""

import math

from scalebench.costmodel.links.laws import busbw_factor
from scalebench.stats import Estimate


def sent_bytes(all_reduce_bytes: float, all_gather_bytes: float, world_size: int) -> float:
    """Return what a rank sends, by the ring's law.

    Args:
        all_reduce_bytes: Handed to all-reduces.
        all_gather_bytes: Handed to all-gathers: this rank's own part.
        world_size: N.
    """
    gathered = all_gather_bytes * world_size
    return (
        busbw_factor("all_reduce", world_size) * all_reduce_bytes
        + busbw_factor("all_gather", world_size) * gathered
    )


def saved_bytes(
    gradient_bytes: float, all_reduce_bytes: float, all_gather_bytes: float, world_size: int
) -> float:
    """Return how much less a rank sends than for the gradients as they are; may be negative."""
    exact = sent_bytes(gradient_bytes, 0, world_size)
    return exact - sent_bytes(all_reduce_bytes, all_gather_bytes, world_size)


def break_even_byte_per_s(saved: float, codec_s: Estimate) -> Estimate:
    """Return the bandwidth below which compression pays; 0 or less: at none.

    Args:
        saved: Bytes that a rank does not have to send, by `saved_bytes`.
        codec_s: Encoding and decoding of one step, seconds, above 0; its interval becomes that
            of the bandwidth.

    Raises:
        ValueError: Encoding and decoding take no time: every link would do.
    """
    lowest = codec_s.value if codec_s.low is None else codec_s.low
    if not min(codec_s.value, lowest) > 0:
        raise ValueError("encoding and decoding must take some time")
    if saved <= 0:
        ends = [None if end is None else saved / end for end in (codec_s.low, codec_s.high)]
        return Estimate(value=saved / codec_s.value, low=ends[0], high=ends[1], n=codec_s.n)
    return codec_s.inverted(saved)


def pays(break_even: Estimate, link_byte_per_s: float) -> bool | None:
    """Tell whether compression pays on a link; None: the interval holds the link's bandwidth."""
    if not math.isfinite(link_byte_per_s) or break_even.value <= 0:
        return False
    if break_even.low is None or break_even.high is None:
        return None
    if break_even.low > link_byte_per_s:
        return True
    return False if break_even.high < link_byte_per_s else None
