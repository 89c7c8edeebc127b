"""What a step tells of the ones after it: the autocorrelation of clean steps."""

from collections.abc import Sequence

import plotly.graph_objects as go

from scalebench.analysis.page_data.rank_steps import Autocorrelation
from scalebench.report.page.charts import ChartKind, legend
from scalebench.report.page.figure_style import Looks, reference_line, safe, style
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.words import wording
from scalebench.report.words.wording import place_name


def memory_of_steps_kind(found: Sequence[Autocorrelation]) -> ChartKind:
    """Return the kind of figure with the autocorrelation of clean steps."""
    return ChartKind(
        "autocorrelation",
        "Correlation between successive steps",
        "",
        lambda _, looks: _autocorrelation(found, looks) if found else None,
        lambda _: _conclude_autocorrelation(found),
        lambda _: _tabulate_autocorrelation(found),
        ("case", "N", "clean steps", "lag 1", "lag 2", "lag 5", "independent within"),
        legend,
        "Autocorrelation of clean steps by lag, mean over the launches; dotted: what independent"
        " steps stay within 19 times in 20.",
    )


def _autocorrelation(found: Sequence[Autocorrelation], looks: Looks) -> go.Figure:
    figure = go.Figure()
    band = max(one.band for one in found)
    longest = max(len(one.values) for one in found)
    for sign in (1, -1):
        figure.add_trace(reference_line([1, longest], [sign * band] * 2))
    for one in found:
        look = looks[one.suite, one.case]
        figure.add_trace(
            go.Scatter(
                x=list(range(1, len(one.values) + 1)),
                y=[round(value, 4) for value in one.values],
                mode="lines+markers",
                line={"color": look.color, "dash": look.dash, "width": 1.6},
                marker={"symbol": look.symbol, "size": 6, "color": look.color},
                name=(name := safe(place_name(one.case, one.world_size), 90)),
                hovertemplate=f"<b>{name}</b><br>lag %{{x}}: %{{y:.2f}}<extra></extra>",
            )
        )
    style(figure, "autocorrelation")
    figure.update_layout(height=300, hovermode="closest")
    figure.update_xaxes(title="lag, steps", automargin=True)
    figure.update_yaxes(automargin=True, zeroline=True, zerolinecolor=NEUTRAL)
    return figure


def _conclude_autocorrelation(found: Sequence[Autocorrelation]) -> str:
    most = max(found, key=lambda one: abs(one.values[0]) / one.band)
    where = place_name(most.case, most.world_size)
    if abs(most.values[0]) <= most.band:
        return f"{most.num_steps} steps show no significant correlation between neighbours."
    return (
        f"Neighbouring steps of {where} are not independent (lag 1: {most.values[0]:.2f}), so that"
        " intervals count launches, not steps."
    )


def _tabulate_autocorrelation(found: Sequence[Autocorrelation]) -> list[tuple[str, ...]]:
    def at(one: Autocorrelation, lag: int) -> str:
        return wording.signed(one.values[lag - 1], 2) if lag <= len(one.values) else wording.DASH

    return [
        (
            wording.plain(one.case, 64),
            str(one.world_size),
            str(one.num_steps),
            *(at(one, lag) for lag in (1, 2, 5)),
            f"± {one.band:.2f}",
        )
        for one in found
    ]
