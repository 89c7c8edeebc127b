"""Links by name, as ``--link`` and ``--links`` take them."""

from scalebench.costmodel.links.topology import LINKS, Topology
from scalebench.costmodel.search.links import NominalLinks
from scalebench.errors import UsageError, unknown_name

LATER = "nominal links: data sheets' bandwidths, latencies of NCCL's tuning table"


def links_by_name(text: str, ranks_per_node: int) -> NominalLinks:
    """Return links such as ``nvlink4+infiniband-ndr``: inside a node, and one for each rank across.

    One name alone: all ranks have that link to all others.

    Raises:
        UsageError: There is no such link, or there are more than two names.
    """
    names = [part.strip() for part in text.split("+")]
    for name in names:
        if name not in LINKS:
            raise unknown_name("link", name, LINKS)
    if len(names) > 2:
        raise UsageError(
            f"--link {text}: give one name, or two joined by +: the link inside a node and the one "
            "between nodes, for example nvlink4+infiniband-ndr."
        )
    inside, across = LINKS[names[0]], LINKS[names[-1]]
    size = ranks_per_node if len(names) > 1 else 1
    topology = Topology(ranks_per_node=size, inside=inside, across=across, links_across=size)
    return NominalLinks(topology, f"{text}, {size} ranks a node; {LATER}")
