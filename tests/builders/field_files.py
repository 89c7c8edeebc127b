"""Files from the field, which lie beside the project: of other people, so never copied into it."""

import os
from pathlib import Path

import pytest

FOLDER = "SCALEBENCH_FIELD"
"""Environment variable that says where they are; by default in ``../shared/field``."""


def field_file(path: str) -> Path:
    """Return a file or folder; the test is skipped where it is not there."""
    beside = Path(__file__).parents[3] / "shared" / "field"
    found = Path(os.environ.get(FOLDER, beside)) / path
    if not found.exists():
        pytest.skip(f"{path} of the files from the field is not here; {FOLDER} says where")
    return found
