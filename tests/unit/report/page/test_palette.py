import itertools
import math
import re
from importlib import resources

from scalebench.report.figures.style import CATEGORY_COLORS, COLORS, PART_COLORS
from tests.examples import cases

SIGHTS = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""What is left of linear RGB: Machado, Oliveira & Fernandes 2009, severity 1."""

LEAST_CASES, LEAST_PARTS = 13.0, 7.0
"""ΔE of CIE 1976; about 2.3 is just noticeable. Parts of a budget touch and have a line between."""


def linear(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def seen(color, sight):
    rgb = linear(color)
    return [
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True))))
        for row in SIGHTS[sight]
    ]


def lab(rgb):
    r, g, b = rgb
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in xyz)
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


def distance(one, other, sight):
    return math.dist(lab(seen(one, sight)), lab(seen(other, sight)))


def luminance(color):
    r, g, b = linear(color)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def papers():
    style = resources.files("scalebench.report").joinpath("templates", "style.css").read_text()
    return sorted(set(re.findall(r"--paper: (#[0-9a-f]{6});", style)))


@cases("sight", *SIGHTS)
def test_any_two_colours_of_cases_can_be_told_apart(sight):
    closest = min(itertools.combinations(COLORS, 2), key=lambda pair: distance(*pair, sight))
    assert distance(*closest, sight) >= LEAST_CASES, closest


@cases("sight", *SIGHTS)
@cases("parts", PART_COLORS, CATEGORY_COLORS, ids=["budget", "memory"])
def test_neighbours_in_a_strip_can_be_told_apart(sight, parts):
    for pair in itertools.pairwise(parts.values()):
        assert distance(*pair, sight) >= LEAST_PARTS, pair


@cases("color", *COLORS)
def test_a_colour_is_seen_on_both_papers(color):
    assert len(papers()) == 2
    assert all(contrast(color, paper) >= 3 for paper in papers())
