"""Efficiency over N as a small picture (SVG): drawn without a script, sharp on paper."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from scalebench.records.summary import Estimate, Row
from scalebench.report.figures.style import DASHES, NEUTRAL, SYMBOLS, Look, Looks
from scalebench.report.words import wording
from scalebench.report.words.wording import CaseKey

WIDTH, HEIGHT = 250, 152
LEFT, RIGHT, TOP, BOTTOM = 43, 6, 8, 32
MOST_MARKS = 240
"""With more rows only the lines are drawn: marks would cover each other."""

MOST_TICKS = 8
DODGE = 7.0
"""Pixels between two cases at one N, at most."""


@dataclass(frozen=True)
class _Axes:
    sizes: tuple[int, ...]
    ceiling: float

    def x(self, size: int) -> float:
        inner = WIDTH - LEFT - RIGHT
        if len(self.sizes) == 1:
            return LEFT + inner / 2
        margin = min(26.0, inner / (2 * len(self.sizes)))
        place = self.sizes.index(size) / (len(self.sizes) - 1)
        return LEFT + margin + (inner - 2 * margin) * place

    def y(self, efficiency: float) -> float:
        share = efficiency / self.ceiling
        inner = HEIGHT - TOP - BOTTOM
        return TOP + inner * (1 - min(max(share, 0.0), 1.0))


def efficiency_chart(
    rows: Sequence[Row],
    looks: Looks,
    links: Mapping[int, str],
    label: str,
    before: Sequence[Row] = (),
) -> Markup | None:
    """Return the picture; None: no case has an efficiency.

    ``links``: ``id`` of a row → address of its view. ``before``: rows of an earlier run, drawn
    pale.
    """
    drawn, earlier = _rated(rows), _rated(before)
    if not drawn:
        return None
    known = [row.efficiency for row in (*drawn, *earlier) if row.efficiency]
    most = max(one.reach[1] for one in known)
    sizes = tuple(sorted({row.world_size for row in (*drawn, *earlier)}))
    axes = _Axes(sizes, min(max(1.05, 1.03 * most), 2.0))
    groups = wording.by_case(drawn)
    parts = [*_grid(axes)]
    with_marks = len(drawn) <= MOST_MARKS
    for key, group in wording.by_case(earlier).items():
        index = list(groups).index(key) if key in groups else 0
        pale = _case(key, looks[key], group, axes, _shift(index, len(groups), axes), None)
        parts += [f'<g opacity="0.35">{"".join(pale)}</g>']
    for index, (key, group) in enumerate(groups.items()):
        shift = _shift(index, len(groups), axes)
        parts += _case(key, looks[key], group, axes, shift, links if with_marks else None)
    return Markup(
        f'<svg class="effchart" viewBox="0 0 {WIDTH} {HEIGHT}" role="group"'
        f' aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _rated(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.efficiency and not wording.is_baseline(row)]


def _shift(index: int, count: int, axes: _Axes) -> float:
    room = (WIDTH - LEFT - RIGHT) / len(axes.sizes) * 0.5
    step = min(DODGE, room / max(count, 1))
    return (index - (count - 1) / 2) * step


def _grid(axes: _Axes) -> list[str]:
    lines = [
        f'<line class="{"ideal" if tick == 1 else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}"'
        f' y1="{axes.y(tick):.1f}" y2="{axes.y(tick):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{axes.y(tick) + 4:.1f}" text-anchor="end">'
        f"{100 * tick:.0f} %</text>"
        for tick in (0.0, 0.5, 1.0)
    ]
    every = -(-len(axes.sizes) // MOST_TICKS)
    lines += [
        f'<text x="{axes.x(size):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{size}'
        "</text>"
        for size in axes.sizes[::every]
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">ranks (N)</text>')
    return lines


def _case(
    key: CaseKey,
    look: Look,
    group: Sequence[Row],
    axes: _Axes,
    shift: float,
    links: Mapping[int, str] | None,
) -> list[str]:
    points = [
        (axes.x(row.world_size) + shift, row, row.efficiency) for row in group if row.efficiency
    ]
    line = " ".join(f"{x:.1f},{axes.y(one.value):.1f}" for x, _, one in points)
    dash = DASHES[look.dash]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    said = [
        f'<polyline points="{line}" fill="none" stroke="{look.color}" stroke-width="1.6"{dashed}/>'
    ]
    if links is None:
        return said
    for x, row, one in points:
        said.append(_mark(look, axes, x, row, one, links.get(id(row), "")))
    return said


def _mark(look: Look, axes: _Axes, x: float, row: Row, one: Estimate, link: str) -> str:
    color = look.color
    whisker = ""
    if one.ends:
        bottom, top = map(axes.y, one.ends)
        whisker = (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"'
            f' stroke="{color}" stroke-width="1.6"/>'
        )
    hollow = row.oversubscribed or one.low is None
    fill = "var(--paper)" if hollow else color
    text = html.escape(
        f"{wording.place(row)}: {wording.plus_minus(one, 100)} %"
        + (", oversubscribed" if row.oversubscribed else "")
    )
    mark = (
        f'{whisker}<path d="{SYMBOLS[look.symbol]}" transform="translate({x:.1f}'
        f' {axes.y(one.value):.1f})" fill="{fill}" stroke="{color}" stroke-width="1.4"/>'
        f'<circle cx="{x:.1f}" cy="{axes.y(one.value):.1f}" r="9" fill="transparent"/>'
        f"<title>{text}</title>"
    )
    if not link:
        return f"<g>{mark}</g>"
    return f'<g data-row="{html.escape(link)}">{mark}</g>'


def swatch(look: Look, hollow: bool = False) -> Markup:
    """Return a case's marker, for a name next to it."""
    color = look.color or NEUTRAL
    fill = "none" if hollow else color
    return Markup(
        '<svg class="marker" viewBox="-7 -7 14 14" width="14" height="14" aria-hidden="true">'
        f'<path d="{SYMBOLS[look.symbol]}" fill="{fill}" stroke="{color}" stroke-width="1.4"/>'
        "</svg>"
    )
