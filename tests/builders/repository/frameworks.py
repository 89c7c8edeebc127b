"""The environments of other people's libraries and tools, which ``make frameworks-env`` makes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON") or ROOT / ".venv-frameworks" / "bin" / "python")
TOOLS = Path(os.environ.get("TOOLS_PYTHON") or ROOT / ".venv-tools" / "bin" / "python")
REQUIRED = os.environ.get("SCALEBENCH_FRAMEWORK_TESTS") == "required"
"""Whether tests of these libraries may not be skipped."""


def need(python: Path, *modules: str) -> None:
    """Skip the test unless an environment has modules; fail it where it may not be skipped."""
    find = f"import importlib.util as u, sys; sys.exit(None in map(u.find_spec, {modules}))"
    if python.exists() and subprocess.run([python, "-c", find]).returncode == 0:
        return
    reason = f"{python} lacks one of {', '.join(modules)}: make frameworks-env installs them"
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)
