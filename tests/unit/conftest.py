"""Unit tests start no ranks and ask of nothing to be fast."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They run beside others."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.untimed)
