"""What dumps of collectives say, for a terminal."""

from collections.abc import Sequence

from scalebench import units
from scalebench.costmodel.links.topology import Link
from scalebench.report.tables.layout import Column, Screen, value
from scalebench.report.words import wording
from scalebench.trace.dumps.examination import Bandwidth, Examination, GroupState

MOST_BANDWIDTHS = 20


def render_dumps(
    examinations: Sequence[Examination],
    link: tuple[str, Link] | None,
    width: int,
    color: bool,
    ascii_only: bool,
) -> str:
    """Return the text for a terminal.

    Args:
        examinations: By source.
        link: Name and figures of the link to compare bandwidths with; None: none.
        width: Of the terminal; as for `Screen`, like the next two.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII.
    """
    screen = Screen(width, color, ascii_only)
    for one in examinations:
        screen.lines(one.notices, "yellow")
        screen.line()
        screen.line(one.source, "dim")
        for group in one.groups:
            screen.lines(group_lines(group, one.source == "flight recorder"))
        screen.lines(f"not ended: {text}" for text in one.pending)
        if one.bandwidths:
            screen.line()
            screen.table(_columns(link), one.bandwidths[:MOST_BANDWIDTHS])
    screen.line()
    return screen.text()


def group_lines(state: GroupState, recorder: bool) -> list[str]:
    """Say how far a group came, who is behind, and what does not fit.

    Args:
        state: Of the group.
        recorder: The flight recorder says it; NCCL Inspector only knows calls that ended.
    """
    where = f" at {state.where}" if state.where else ""
    head = f"{state.group}, {len(state.ranks)} ranks: the last collective is {state.last}, "
    lines = [wording.plain(f"{head}{state.name}{where}")]
    by_last: dict[str, list[int]] = {}
    for one in state.missing:
        own = f"the last call was {one.last}, {one.name}" + (
            f" at {one.where}" if one.where else ""
        )
        text = "called none in this group" if one.last is None else own
        by_last.setdefault(text, []).append(one.rank)
    for text, ranks in by_last.items():
        did = "did not enter it" if recorder else "has no record of it"
        lines.append("  " + wording.plain(f"{_named(ranks)} {did}; {text}"))
    if state.unfinished:
        lines.append(f"  {_named(state.unfinished)} entered it and did not end it")
    elif not state.missing and not state.without_dump:
        lines.append("  all ranks entered it and ended it")
    if state.without_dump:
        lines.append(f"  not known of {_named(state.without_dump)}: no dump was given")
    if state.mismatch is not None:
        what = "the order differs" if state.mismatch.what == "order" else "the sizes differ"
        told = "; ".join(f"{_named(r)}: {text}" for text, r in state.mismatch.by_text.items())
        lines.append("  " + wording.plain(f"{what} at {state.mismatch.sequence}: {told}"))
    return lines


def _named(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def _columns(link: tuple[str, Link] | None) -> tuple[Column[Bandwidth], ...]:
    columns: tuple[Column[Bandwidth], ...] = (
        Column("collective", lambda row: row.name, numeric=False),
        Column("group", lambda row: wording.plain(row.group, 40), numeric=False, from_width=110),
        Column("ranks", lambda row: str(row.num_ranks)),
        value("bytes", lambda row: row.num_bytes, units.bytes_),
        Column("count", lambda row: str(row.count)),
        value("time", lambda row: row.lasted_s, units.seconds),
        value("busbw", lambda row: row.busbw_byte_per_s, lambda rate: f"{units.bytes_(rate)}/s"),
    )
    if link is None:
        return columns
    name, nominal = link[0], link[1].bandwidth_byte_per_s

    def share(row: Bandwidth) -> str:
        rate = row.busbw_byte_per_s
        return wording.DASH if rate is None else units.percent(rate / nominal)

    return (*columns, Column(f"of {name}", share))
