"""Torch versions that can and cannot be watched."""

import pytest

from scalebench.worker.attach.problems import ScriptProblem, check_torch


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "2.15.0a0+git1234", "3.0", "odd"])
def test_versions_that_can_be_watched(version):
    check_torch(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cu121"])
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)
