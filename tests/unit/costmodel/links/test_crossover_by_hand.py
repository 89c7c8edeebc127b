"""Who wins at which size: sizes, neighbours and middles by hand."""

from scalebench.costmodel.links.crossover import Winner, crossovers
from scalebench.costmodel.links.fitting.fit import fit_links
from tests.builders.link_sweeps import point, sweep


def timed(algorithm, times, **fields):
    """Times by size."""
    return [point(size, time, algorithm=algorithm, **fields) for size, time in times.items()]


def test_neighbouring_sizes_of_one_winner_are_one_and_a_tie_is_the_first():
    points = [
        *timed("ring", {400: 9.0, 100: 5.0, 200: 5.0, 800: 2.0, 1600: 3.0}),
        *timed("tree", {100: 4.0, 200: 4.0, 400: 8.0, 800: 7.0, 1600: 3.0}),
    ]
    assert crossovers(points, ()) == [
        Winner(2, 100, 400, "tree", None),
        Winner(2, 800, 1600, "ring", None),
    ]


def test_a_winner_that_comes_back_is_there_twice():
    points = [
        *timed("ring", {100: 1.0, 200: 5.0, 400: 1.0}, world_size=3),
        *timed("tree", {100: 4.0, 200: 4.0, 400: 4.0}, world_size=3),
    ]
    found = crossovers(points, ())
    assert [(w.world_size, w.min_bytes, w.max_bytes, w.measured) for w in found] == [
        (3, 100, 100, "ring"),
        (3, 200, 200, "tree"),
        (3, 400, 400, "ring"),
    ]


def test_sizes_that_not_all_algorithms_have_are_not_judged():
    points = [*timed("ring", {100: 5.0, 200: 5.0}), *timed("tree", {200: 6.0, 400: 1.0})]
    assert crossovers(points, ()) == [Winner(2, 200, 200, "ring", None)]


def test_the_lines_are_asked_at_the_geometric_middle_of_the_sizes():
    """Lines cross at 1 MB; those who won by measurement from 1 kB to 64 MB meet at 256 kB."""
    size = [2**power for power in range(10, 27)]
    quick = sweep(size, [1e-4 + d / 1e8 for d in size], algorithm="tree")
    wide = sweep(size, [1.009e-2 + d / 1e12 for d in size], algorithm="ring")
    fits = fit_links([*quick, *wide]).fits
    measured = [*timed("tree", dict.fromkeys(size, 2.0)), *timed("ring", dict.fromkeys(size, 1.0))]
    assert crossovers(measured, fits) == [Winner(2, 2**10, 2**26, "ring", "tree")]
    last = [
        *timed("tree", dict.fromkeys(size[9:], 2.0)),
        *timed("ring", dict.fromkeys(size[9:], 1.0)),
    ]
    assert crossovers(last, fits) == [Winner(2, 2**19, 2**26, "ring", "ring")]


def test_a_line_that_has_no_size_there_predicts_nothing():
    size = [2**power for power in range(10, 16)]
    fits = fit_links(
        [
            *sweep(size, [1e-4 + d / 1e8 for d in size], algorithm="tree"),
            *sweep(size, [1e-3 + d / 1e9 for d in size], algorithm="ring"),
        ]
    ).fits
    points = [*timed("tree", {2**17: 2.0}), *timed("ring", {2**17: 1.0})]
    assert crossovers(points, fits) == [Winner(2, 2**17, 2**17, "ring", None)]
