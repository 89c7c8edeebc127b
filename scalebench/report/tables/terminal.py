"""Text for a terminal: lines that are ASCII where nothing else can be shown."""

import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from scalebench.report.words import wording

ASCII = {
    wording.TIMES: "x", "±": "+/-", "µ": "u", wording.DASH: "-", wording.MINUS: "-", "—": "-",
    "→": "->", "…": "...", "✓": "ok", "·": "|", "─": "-", "≥": ">=", "≤": "<=",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
}  # fmt: skip

NARROWEST = 40


def to_ascii(text: str) -> str:
    """Return ``text`` in ASCII; signs have their equivalents, anything else is ``?``."""
    spelt = "".join(ASCII.get(character, character) for character in text)
    return spelt.encode("ascii", "replace").decode("ascii")


def line(content: str, ascii_only: bool, style: str = "") -> Text:
    """Return one styled line."""
    return Text(to_ascii(content) if ascii_only else content, style=style)


def titled(title: str, remark: str, ascii_only: bool) -> Text:
    """Return a title with a remark beside it; an empty one is none."""
    if not remark:
        return line(title, ascii_only, "bold")
    return Text.assemble(line(title, ascii_only, "bold"), line(f"  {remark}", ascii_only, "dim"))


def printed(parts: Sequence[RenderableType], width: int, color: bool, ascii_only: bool) -> str:
    """Return what rich prints of ``parts`` on such a terminal, without blanks at the ends."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(Group(*parts))
    written = to_ascii(stream.getvalue()) if ascii_only else stream.getvalue()
    lines = [text.rstrip() for text in written.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"
