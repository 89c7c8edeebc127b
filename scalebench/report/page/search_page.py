"""The page of ``scalebench search``: step time against memory, and the best in a table."""

import plotly.graph_objects as go

from scalebench import __version__, units
from scalebench.report.figures.charts import Chart, legend, plot_json
from scalebench.report.figures.style import COLORS, NEUTRAL, safe, style, wide_axis
from scalebench.report.page.offline import render_offline
from scalebench.report.search import MEASURED, columns_of, experiment_words, notes
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import wording
from scalebench.search.result import RankedChoice, SearchResult

MILLI = 1e3


def render_search_page(result: SearchResult) -> str:
    """Return one HTML file that opens offline."""
    return render_offline(
        "search.html.j2",
        with_charts=True,
        title=f"Search: {result.workload} on {result.world_size} ranks",
        facts=f"global batch {result.global_batch} · {result.num_candidates:,} configurations · "
        f"scalebench {__version__}",
        why=result.why,
        notes=[*_of_experiment(result), *notes(result)],
        chart=_chart(result),
        tables=_tables(result),
    )


def _of_experiment(result: SearchResult) -> list[str]:
    if result.measured is None:
        return []
    return [f"trained here: {said}" for said in experiment_words(result.measured)]


def _conclusion(result: SearchResult) -> str:
    fastest, least = result.front[-1], result.front[0]
    if len(result.front) == 1:
        return f"{fastest.mesh_words} is fastest and needs least memory."
    return (
        f"The fastest step, {units.seconds(fastest.step_s)}, needs "
        f"{units.bytes_(fastest.memory_bytes)} a rank; the least memory, "
        f"{units.bytes_(least.memory_bytes)}, costs {units.seconds(least.step_s)}."
    )


def _chart(result: SearchResult) -> Chart:
    figure = go.Figure()
    others = [one for one in result.best if one.case not in {f.case for f in result.front}]
    steps = [one.step_s for one in (*result.front, *others)]
    memory = [one.memory_bytes for one in (*result.front, *others)]
    unit, size = ("GB", 1e9) if max(memory) >= 1e9 else ("MB", 1e6)
    line = {"color": COLORS[0], "width": 2, "shape": "vh"}
    figure.add_trace(
        _points(result.front, "Pareto front", "lines+markers", COLORS[0], (unit, size), line)
    )
    if others:
        figure.add_trace(_points(others, "best of other meshes", "markers", NEUTRAL, (unit, size)))
    if result.memory_limit_bytes is not None:
        limit = result.memory_limit_bytes / (1 + result.margin) / size
        ends = [MILLI * min(steps), MILLI * max(steps)]
        figure.add_trace(
            go.Scatter(
                x=[limit, limit], y=ends, mode="lines", name="memory limit less margin",
                line={"color": COLORS[1], "width": 1.5, "dash": "dot"}, hoverinfo="skip",
            )
        )  # fmt: skip
    style(figure, "search")
    figure.update_xaxes(
        title=f"predicted memory of a rank, {unit}", **wide_axis([m / size for m in memory])
    )
    figure.update_yaxes(
        title="predicted step, ms", automargin=True, **wide_axis([MILLI * s for s in steps])
    )
    said = _conclusion(result)
    return Chart(
        id="search-front",
        suite="",
        conclusion=said,
        label=f"Step time against memory. {said} The numbers are in the table below.",
        spec=plot_json(figure),
        height=400,
        key=legend(figure),
        header=("case", "step", "memory a rank"),
        table=tuple(
            (one.case, units.seconds(one.step_s), units.bytes_(one.memory_bytes))
            for one in result.front
        ),
    )


def _points(
    of: "tuple[RankedChoice, ...] | list[RankedChoice]",
    name: str,
    mode: str,
    color: str,
    scale: tuple[str, float],
    line: dict[str, object] | None = None,
) -> go.Scatter:
    unit, size = scale
    return go.Scatter(
        x=[one.memory_bytes / size for one in of],
        y=[MILLI * one.step_s for one in of],
        mode=mode,
        name=name,
        line=line,
        marker={"color": color, "size": 8, "symbol": "circle"},
        customdata=[[f"{safe(one.mesh_words)}<br>{safe(one.how_words)}"] for one in of],
        hovertemplate=f"%{{customdata[0]}}<br>%{{y:.4g}} ms, %{{x:.4g}} {unit}<extra></extra>",
    )


def _tables(result: SearchResult) -> list[PlainTable]:
    rows = list(enumerate(result.best, 1))
    found = [PlainTable.of("The best of each mesh and ZeRO stage.", "", columns_of(result), rows)]
    if result.measured is not None:
        title = f"Trained here, run {wording.plain(result.measured.run, 80)}."
        found.append(PlainTable.of(title, "", MEASURED, result.measured.rows))
    return found
