"""Pages that open offline: one HTML file with everything in it, and the addresses of its views.

Every string of a run is hostile: jinja2 escapes all of them, data travels as escaped JSON, and
the page's content security policy runs no script but its own, known by their hashes.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.terms import OF_LOGS, definitions, printable

_KEPT = "-_.!~*'()="
"""What the page's scripts leave as it is, too (JavaScript's encodeURIComponent, and ``=``)."""


def fragment(*parts: str) -> str:
    """Return the address of what these names lead to: ``"ddp/ddp-bucket-1mb/N=2"``."""
    return "/".join(quote(part.encode("utf-8", "replace"), safe=_KEPT) for part in parts)


def row_address(row: Row, prefix: Sequence[str] = ()) -> str:
    """Return the address of a row; ``prefix`` names its run where the page has several."""
    return fragment(*prefix, row.suite, row.case, f"N={row.world_size}")


def row_links(rows: Sequence[Row], prefix: Sequence[str] = ()) -> dict[tuple[str, str], str]:
    """Return case and N, as every table writes them → address of the row."""
    links: dict[tuple[str, str], str] = {}
    for row in rows:
        place = (wording.plain(row.case, 64), str(row.world_size))
        links.setdefault(place, row_address(row, prefix))
    return links


def render_offline(template: str, with_charts: bool, shared: bool = False, **context: Any) -> str:
    """Return a page with its style and its scripts inside.

    ``template`` is a file below ``templates/``. ``shared``: the page is one of a folder of pages.
    It is packed, and has style and scripts from the `shared_files` of the folder.
    """
    scripts = [] if shared else [page_script()] + [_resource("scripts/unpack.js")] * with_charts
    inside = with_charts and not shared
    page = _rendered(
        template,
        style=Markup("" if shared else _style()),
        scripts=[Markup(script) for script in scripts],
        plotly_packed=_packed_plotly() if inside else "",
        policy=_policy([*scripts, *[_plotly_script()] * inside]),
        **context,
    )
    if not shared:
        return page
    policy = _policy([_plotly_script()], "'self' file: ")
    return _rendered("packed.html.j2", page=packed(page), policy=policy, files=list(shared_files()))


def _rendered(template: str, **context: Any) -> str:
    page: str = _environment().get_template(template).render(**context)
    return page


@cache
def shared_files() -> dict[str, str]:
    """Return what the pages of a folder share: name of the file → text."""
    scripts = page_script() + _resource("scripts/unpack.js")
    unpack = _resource("scripts/packed.js").replace("STYLE", json.dumps(_style()), 1)
    place = f'{{ type: "text/plain", id: "plotly", textContent: "{_packed_plotly()}" }}'
    plotly = f'Object.assign(document.createElement("script"), {place})'
    return {
        "pages.js": f"{unpack}openPage().then(() => {{\n{scripts}}}, showWhy);\n",
        "plotly.packed.js": f"document.head.append({plotly});\n",
    }


def _style() -> str:
    return "\n".join(_resource(name) for name in STYLES)


SCRIPTS = ("theme", "charts", "terms", "views", "search", "files", "copy", "print", "main")
"""Files below ``templates/scripts/``, in the order in which they are joined."""

STYLES = ("style.css", "views.css")


@cache
def page_script() -> str:
    """Return the page's own script: its files in one function, so that they see each other."""
    parts = (_resource(f"scripts/{name}.js") for name in SCRIPTS)
    body = "\n".join(parts)
    return f'"use strict";\n(() => {{\nconst root = document.documentElement;\n{body}}})();\n'


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("scalebench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["plain"] = wording.plain
    environment.filters["packed"] = lambda found: packed(json.dumps(found))
    environment.filters["tied"] = _tied
    environment.filters["jointed"] = _jointed
    environment.filters["term"] = _term
    environment.globals |= {"definitions": definitions, "words_of_logs": OF_LOGS}
    return environment


_RANGE = re.compile(rf"\(?\d[\d.]*{wording.DASH}\d[\d.]*\)?(?:\N{{NO-BREAK SPACE}}%\)?)?")
_COMPOUND = re.compile(r"(?<!\S)(?=\S{3,24}(?!\S))[\w.]+(?:-[\w.]+)+")
_JOINT = re.compile(r"(?<=[-_/.])(?=[^\W\d])")
_LONGEST_WHOLE = 14


def _tied(text: str) -> Markup:
    """Return ``text`` with no line break in a range, a short name or before a percent sign."""
    tied = str(escape(text.replace(" %", "\N{NO-BREAK SPACE}%")))
    for pattern in (_RANGE, _COMPOUND):
        tied = pattern.sub(r'<span class="whole">\g<0></span>', tied)
    return Markup(tied)


def _jointed(text: str) -> Markup:
    """Return a name that breaks between its words, never within a short one."""
    words = [Markup.escape(word) for word in _JOINT.split(text)]
    whole = Markup('<span class="whole">{}</span>')
    return Markup("<wbr>").join(
        whole.format(word) if len(word) <= _LONGEST_WHOLE else word for word in words
    )


def _term(text: str) -> Markup:
    """Return a word with a link to its definition; without one: the word."""
    if text not in definitions():
        return Markup.escape(text)
    address = f"word-{text.replace(' ', '-').replace('/', '-')}"
    return Markup('<a class="term" href="#{}">{}</a>').format(address, text)


@cache
def _resource(name: str) -> str:
    return resources.files("scalebench.report").joinpath("templates", name).read_text("utf-8")


def packed(text: str) -> str:
    """Return a text as base64 of its gzip, the same every time."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    """Return plotly's script in a third of its size; the page unpacks it for its first figure."""
    return packed(_plotly_script())


def _plotly_script() -> str:
    script: str = get_plotlyjs()
    return script


def _policy(scripts: Sequence[str], places: str = "") -> str:
    """Return a policy under which only ``scripts`` and those of some places run."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {places}{hashes}; style-src 'unsafe-inline';"
        " img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
