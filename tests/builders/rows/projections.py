"""A run that is projected."""

from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.profile import CalibratedPoint, profile_of
from scalebench.records.paths import RunPaths
from tests.builders.links.link_sweeps import sizes, sweep
from tests.builders.rows.predictions import BUCKETS, SECONDS_PER_BYTE, at_one
from tests.builders.runs import make_cell, make_info, make_result

ORIGIN = {"created": "2024-05-01", "version": "0", "device": "cpu", "backend": "gloo"}


def the_profile(*world_sizes):
    """Links on which the ring's law holds with B = 1e8 and no latency to speak of."""
    size = sizes(12, 1 << 10, 1 << 24)
    points = [
        CalibratedPoint(**point.model_dump(exclude={"algbw_byte_per_s", "busbw_byte_per_s"}))
        for n in world_sizes
        for point in sweep(size, 2 * (n - 1) / n * size * SECONDS_PER_BYTE, world_size=n)
    ]
    return profile_of(points, (), **ORIGIN)


def make_run(tmp_path, *more, link=None, scaling="strong", plain_s=0.1):
    """Plain and DDP at N=1 on 32 samples: steps of 100 ms, three buckets of 1 MB."""
    plain = make_cell("plain", 1, scaling=scaling)
    ddp = at_one(*BUCKETS)
    ddp = ddp.model_copy(update={"cell": ddp.cell.model_copy(update={"scaling": scaling})})
    results = [make_result(plain, plain_s), ddp, *more]
    info = make_info([result.cell for result in results])
    return StoredRun(
        RunPaths(tmp_path), info, {result.cell.id: result for result in results}, link=link
    )
