"""Files from the field, which lie beside the project: of other people, so never copied into it."""

import os
from pathlib import Path

import pytest

FOLDER = "SCALEBENCH_FIELD"
"""Environment variable that says where they are; by default in ``../shared/field``."""


def field_file(pattern: str) -> Path:
    """Return the only file or folder that fits; the test is skipped where there is none."""
    beside = Path(__file__).parents[4] / "shared" / "field"
    found = [*Path(os.environ.get(FOLDER, beside)).glob(pattern)]
    if not found:
        pytest.skip(f"{pattern} of the files from the field is not here; {FOLDER} says where")
    (only,) = found
    return only
