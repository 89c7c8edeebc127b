"""What is recorded, or listed, in files beside this one: see README.md."""

import re
from pathlib import Path


def sections(file: Path | str) -> dict[str, str]:
    """Return the parts of a file, each under its heading: a line that begins with ``#### ``."""
    text = (Path(__file__).parent / file).read_text("utf-8")
    _, *parts = re.split(r"^#### (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pairs(rows: str) -> dict[str, str]:
    """Return what stands before and after ``→`` in each row."""
    return dict(row.split(" → ") for row in rows.splitlines())
