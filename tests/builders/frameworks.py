"""The environment of other people's libraries, which ``make frameworks-env`` makes."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON") or ROOT / ".venv-frameworks" / "bin" / "python")
REQUIRED = os.environ.get("SCALEBENCH_FRAMEWORK_TESTS") == "required"
"""Whether tests of these libraries may not be skipped."""
