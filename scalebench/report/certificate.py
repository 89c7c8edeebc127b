"""A certificate as a table, for terminal and page: injected, recovered, error, verdict."""

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scalebench import units
from scalebench.certificate import Certificate, Line
from scalebench.report import wording
from scalebench.report.listing import PlainTable
from scalebench.report.terminal import NARROWEST, printed, to_ascii
from scalebench.report.terminal import line as told

HEADER = ("quantity", "injected", "recovered", "error", "noise", "limit", "verdict", "details")
WORDS = frozenset({"quantity", "verdict", "details"})
FROM_WIDTH = {
    "error": 50,
    "recovered": 64,
    "injected": 76,
    "noise": 88,
    "limit": 98,
    "details": 140,
}
"""Columns of the terminal from which one of the table is shown; the others always are."""

LONGEST_NAME, LONGEST_TEXT = 40, 300

FINE = 0.001
"""Limits below are written with more places."""

PASSED, FAILED, UNDECIDED, NOT_TRIED = "pass", "FAIL", "undecided", "not tried"
_STYLES = {PASSED: "green", FAILED: "bold red", UNDECIDED: "yellow", NOT_TRIED: "dim"}

_WRITE: dict[str, Callable[[float], str]] = {
    "s": units.seconds,
    "bit/s": units.bit_rate,
    "elements": lambda value: f"{value:.0f}",
}


def render_certificate(
    certificate: Certificate, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return a certificate as text for a terminal; arguments as for `render_table`."""
    width = max(width, NARROWEST)
    parts: list[RenderableType] = [_table(certificate, width, ascii_only)]
    for line in certificate.lines:
        if line.reason:
            style = _STYLES[verdict(line)]
            parts.append(
                told(f"{_name(line)}, {verdict(line)}: {_text(line.reason)}", ascii_only, style)
            )
    parts.append(Padding(told(summary(certificate), ascii_only, "bold"), (1, 0, 0, 0)))
    origin = f"certificate {_text(certificate.id)}, seed {certificate.seed}"
    parts.append(told(f"{origin}, {certificate.seconds:.0f} s", ascii_only, "dim"))
    return printed(parts, width, color, ascii_only)


def summary(certificate: Certificate) -> str:
    """Return the certificate in one sentence."""
    lines = len(certificate.lines)
    text = f"{certificate.num_passed} of {lines} lines pass"
    if certificate.failed:
        text += f"; failed: {', '.join(map(_name, certificate.failed))}"
    if certificate.undecided:
        text += f"; {len(certificate.undecided)} undecided because of noise"
    if certificate.not_tried:
        text += f"; {len(certificate.not_tried)} not tried"
    return f"{text}."


def reference(certificate: Certificate) -> str:
    """Return the line under a run's table that says what its instrument was worth."""
    return f"instrument: certificate {_text(certificate.id)}: {summary(certificate)}"


def verdict(line: Line) -> str:
    """Return the verdict of a line in a word."""
    if line.passed is not None:
        return PASSED if line.passed else FAILED
    return UNDECIDED if line.tried else NOT_TRIED


def as_listing(certificate: Certificate) -> PlainTable:
    """Return the certificate as a table of the page."""
    made = f"{certificate.form} form, {certificate.created}, seed {certificate.seed}"
    return PlainTable(
        title="What was injected, and what was recovered",
        note=f"{summary(certificate)} Certificate {_text(certificate.id)} ({made}).",
        header=HEADER,
        lines=tuple(
            (*cells(line)[:-1], _text(line.reason or line.detail)) for line in certificate.lines
        ),
        words=frozenset(i for i, header in enumerate(HEADER) if header in WORDS),
    )


def cells(line: Line) -> tuple[str, ...]:
    """Return the cells of a line under `HEADER`."""
    write = _WRITE.get(line.unit) or _ratio(line)
    places = 2 if line.limit is None or line.limit == 0 or line.limit >= FINE else 4

    def percent(ratio: float | None, form: str) -> str:
        if ratio is None:
            return wording.DASH
        return format(ratio * 100, f"{form}.{places}f").replace("-", wording.MINUS) + " %"

    noise = percent(line.noise_ratio, "")
    return (
        _name(line),
        *(wording.DASH if v is None else write(v) for v in (line.injected, line.recovered)),
        percent(line.error_ratio, "+"),
        noise if line.noise_ratio is None else f"±{noise}",
        percent(line.limit, ""),
        verdict(line),
        _text(line.detail),
    )


def _name(line: Line) -> str:
    return wording.plain(line.name, LONGEST_NAME)


def _text(content: str) -> str:
    return wording.plain(content, LONGEST_TEXT)


def _ratio(line: Line) -> Callable[[float], str]:
    """Return how a plain ratio is written: a factor, or a small part of something."""
    if line.limit_of == "injected":
        return lambda value: f"{wording.TIMES}{value:.3f}"
    return lambda value: f"{value * 100:.2f} %".replace("-", wording.MINUS)


def _table(certificate: Certificate, width: int, ascii_only: bool) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    shown = [i for i, header in enumerate(HEADER) if width >= FROM_WIDTH.get(header, 0)]
    for header in (HEADER[i] for i in shown):
        table.add_column(
            header,
            justify="left" if header in WORDS else "right",
            no_wrap=header not in ("quantity", "details"),
            overflow="fold",
        )
    for line in certificate.lines:
        texts = [to_ascii(text) if ascii_only else text for text in cells(line)]
        styles = {"verdict": _STYLES[verdict(line)], "details": "dim"}
        table.add_row(*(Text(texts[i], style=styles.get(HEADER[i], "")) for i in shown))
    return table
