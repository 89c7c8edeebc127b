"""Small jobs for tests of the search."""

from dataclasses import replace

from scalebench.costmodel.links.topology import LINKS, Topology
from scalebench.search.model import SearchModel
from scalebench.search.prediction.links import NominalLinks
from scalebench.search.space import ComputeSpeed, Job

SMALL = SearchModel(
    name="small", layers=4, heads=4, width=256, context=128, vocabulary=512, kv_heads=4, inner=1024
)
ROUTED = replace(SMALL, name="routed", experts=4, top_k=2)
SPEED = ComputeSpeed(
    flop_s={"float32": 1e-12, "bfloat16": 2e-13},
    pass_s=1e-4,
    update_s=1e-3,
    described="a test",
    peak_flops={"float32": 2e12, "bfloat16": 1e13},
)
TWO_LEVELS = Topology(
    ranks_per_node=4, inside=LINKS["nvlink3"], across=LINKS["ethernet-10g"], links_across=1
)


def job(world_size=8, batch=16, **changes):
    """Return a job of the small model on nodes of 4, unless something else is said."""
    start = Job(SMALL, world_size, batch, SPEED, NominalLinks(TWO_LEVELS, "a test"))
    return replace(start, **changes)
