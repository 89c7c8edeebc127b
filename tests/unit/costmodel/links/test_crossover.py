"""Which all-reduce is fastest at which size: of each number of ranks by its own lines."""

from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.points import crossovers
from tests.builders.links.link_sweeps import sizes, sweep
from tests.examples import cases

SIZE = sizes(20)


def all_reduce(algorithm, latency_s, bandwidth, **fields):
    return sweep(SIZE, latency_s + SIZE / bandwidth, algorithm=algorithm, **fields)


def winners(points):
    return crossovers(points, fit_links(points)[0])


@cases(
    "name, values", ("world_size", (2, 4)), ("dtype", ("float32", "bfloat16")), ("link", ("a", "b"))
)
def test_lines_of_other_ranks_types_and_links_predict_nothing_here(name, values):
    """The second's two algorithms are those of the first, the other way round."""
    one, other = ({name: value} for value in values)
    quick, wide = (1e-5, 1e8), (1e-4, 1e9)
    points = [
        *(*all_reduce("tree", *quick, **one), *all_reduce("ring", *wide, **one)),
        *(*all_reduce("ring", *quick, **other), *all_reduce("tree", *wide, **other)),
    ]
    found = winners(points)
    assert [winner.measured for winner in found] == ["tree", "ring", "ring", "tree"]
    assert [winner.predicted for winner in found] == ["tree", "ring", "ring", "tree"]
