"""Launches whose steps are predicted."""

from scalebench.analysis.attribution import attribute
from scalebench.analysis.shapes import shape_of
from scalebench.costmodel.links.fitted import LinkModel
from scalebench.costmodel.links.fitting import fit_links
from tests.builders.links.link_sweeps import sizes, sweep
from tests.builders.tracing import traced

SECONDS_PER_BYTE = 1e-8
BUCKET = 1_000_000  # 10 ms on the link


def the_link(*world_sizes):
    """Links on which D bytes take D·10 ns, whatever N."""
    size = sizes(12, 1 << 10, 1 << 24)
    points = [p for n in world_sizes for p in sweep(size, size * SECONDS_PER_BYTE, world_size=n)]
    return LinkModel(fit_links(points)[0])


def ask(at, ordinal=0, phase="backward", num_bytes=BUCKET, **changes):
    return traced.make_operation(
        at + 0.1, at + 0.2, ordinal=ordinal, phase=phase, num_bytes=num_bytes, group_size=1,
        enqueued_ns=round(at * 1e6), **changes,
    )  # fmt: skip


def at_one(*operations, clean=100):
    """The strategy at N=1 on 32 samples: steps of 100 ms."""
    record = traced.make_traced_record(0, traced.make_trace(operations, [(0, 100)]), clean=clean)
    return traced.make_traced_result(record, rank_batch=32, global_batch=32)


def shape(*results):
    return shape_of([attribute(result) for result in results])


BUCKETS = (ask(60), ask(80, 1), ask(90, 2))
