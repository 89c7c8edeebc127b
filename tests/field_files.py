"""Files from the field, which lie beside the project and are no part of it."""

import os
from pathlib import Path

import pytest

FIELD = Path(os.environ.get("FIELD_FILES") or Path(__file__).parents[2] / "shared" / "field")


def field_file(pattern: str) -> Path:
    """Return the only file that a pattern below the folder fits; skips the test without it."""
    found = sorted(FIELD.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is not in ../shared/field (or the folder that FIELD_FILES names)")
    (only,) = found
    return only
