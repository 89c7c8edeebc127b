"""A certificate as a table, for terminal and page: injected, recovered, error, verdict."""

from collections.abc import Callable
from dataclasses import replace

from scalebench import units
from scalebench.records.certificate import Certificate, Line
from scalebench.report.tables.layout import Column, PlainTable, Screen
from scalebench.report.words import wording

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


def render_certificate(certificate: Certificate, screen: Screen) -> str:
    """Return a certificate as text for a terminal."""
    screen.table(COLUMNS, certificate.lines)
    for line in certificate.lines:
        if line.reason:
            told = f"{_name(line)}, {verdict(line)}: {_text(line.reason)}"
            screen.line(told, _STYLES[verdict(line)])
    screen.line()
    screen.line(summary(certificate), "bold")
    origin = f"certificate {_text(certificate.id)}, seed {certificate.seed}"
    screen.line(f"{origin}, {certificate.seconds:.0f} s", "dim")
    return screen.text()


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
    *columns, details = COLUMNS
    return PlainTable.of(
        "What was injected, and what was recovered",
        f"{summary(certificate)} Certificate {_text(certificate.id)} ({made}).",
        [*columns, replace(details, text=lambda line: _text(line.reason or line.detail))],
        certificate.lines,
    )


def _write(line: Line, value: float | None) -> str:
    if value is None:
        return wording.DASH
    return (_WRITE.get(line.unit) or _ratio(line))(value)


def _percent(line: Line, ratio: float | None, form: str = "") -> str:
    if ratio is None:
        return wording.DASH
    places = 2 if line.limit is None or line.limit == 0 or line.limit >= FINE else 4
    return format(ratio * 100, f"{form}.{places}f").replace("-", wording.MINUS) + " %"


def _noise(line: Line) -> str:
    return "±" * (line.noise_ratio is not None) + _percent(line, line.noise_ratio)


def _name(line: Line) -> str:
    return wording.plain(line.name, LONGEST_NAME)


def _text(content: str) -> str:
    return wording.plain(content, LONGEST_TEXT)


def _ratio(line: Line) -> Callable[[float], str]:
    """Return how a plain ratio is written: a factor, or a small part of something."""
    if line.limit_of == "injected":
        return lambda value: f"{wording.TIMES}{value:.3f}"
    return lambda value: f"{value * 100:.2f} %".replace("-", wording.MINUS)


COLUMNS: tuple[Column[Line], ...] = (
    Column("quantity", _name, numeric=False, wraps=True),
    Column("injected", lambda line: _write(line, line.injected), from_width=76),
    Column("recovered", lambda line: _write(line, line.recovered), from_width=64),
    Column("error", lambda line: _percent(line, line.error_ratio, "+"), from_width=50),
    Column("noise", _noise, from_width=88),
    Column("limit", lambda line: _percent(line, line.limit), from_width=98),
    Column("verdict", verdict, numeric=False, style=lambda line: _STYLES[verdict(line)]),
    Column(
        "details",
        lambda line: _text(line.detail),
        numeric=False,
        style=lambda line: "dim",
        wraps=True,
        from_width=140,
    ),
)
