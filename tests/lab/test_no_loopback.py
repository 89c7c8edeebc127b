"""A machine whose loopback interface is down: a run says so before it measures anything."""

import time

import pytest

from scalebench.errors import ExitCode
from tests.conftest import PATIENCE_S, ended


@pytest.mark.parametrize("command", ["run ddp -k static --quick --gpus 1,2", "calibrate --gpus 2"])
def test_ranks_that_could_not_connect_are_not_started(start_scalebench, command):
    began = time.monotonic()
    alone = start_scalebench(*command.split(), before=("unshare", "-rn"))
    shown, told = ended(alone, ExitCode.ENVIRONMENT)
    assert "nothing can connect to it here" in told and "ip link set lo up" in told
    assert "Traceback" not in told and not shown
    assert time.monotonic() - began < PATIENCE_S / 3, "it waited for ranks that cannot connect"
