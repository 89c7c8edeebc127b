"""A fault that cannot be brought about is said, and the ranks that wait for it end."""

import signal
import subprocess

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.records.fault_events import CAUGHT_UP, FaultFolder
from scalebench.session.recovery.striking import CALM_POLL_S, Striking
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec.recovery import FaultPlan


@pytest.fixture
def rank():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def folder(tmp_path, rank):
    """Return what a rank has noted that has done its step."""
    folder = FaultFolder(tmp_path)
    folder.note(0, 1, "started", rank.pid)
    folder.note(0, 1, "step", 6)
    return folder


def strike(folder, rank, kind, cut_link=None):
    with Striking(folder, [FaultPlan(kind=kind, rank=1, at_step=6)], cut_link) as striking:
        rank.wait()
    return striking


def test_a_killed_rank_has_failed_at_a_moment_that_is_known(folder, rank):
    striking = strike(folder, rank, "kill")
    assert rank.returncode == -signal.SIGKILL
    assert striking.failed_ns[0] >= folder.events(0, 1)[-1].time_ns


def test_a_restarted_rank_is_not_struck_before_it_has_caught_up(folder, rank):
    plans = [
        FaultPlan(kind="raise", rank=1, at_step=6),
        FaultPlan(kind="kill", rank=1, at_step=5, attempt=1),
        FaultPlan(kind="kill", rank=1, at_step=5, attempt=2, fails=False),
    ]
    folder.note(1, 1, "started", rank.pid)
    folder.note(1, 1, "step", 60)
    with Striking(folder, plans) as striking:
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(5 * CALM_POLL_S)
        folder.note(1, 1, CAUGHT_UP, 60)
        folder.note(1, 1, "step", 64)
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(5 * CALM_POLL_S)
        folder.note(1, 1, "step", 65)
        assert rank.wait(10) == -signal.SIGKILL
    assert list(striking.failed_ns) == [1], "it raised by itself in the first attempt"


@pytest.mark.parametrize("error", [EnvironmentUnfit("the holder has ended"), ValueError("closed")])
def test_a_link_that_cannot_be_cut_is_said_and_its_rank_ends(folder, rank, error):
    def refuse():
        raise error

    with pytest.raises(NoTimeline, match=f"rank 1 could not be made to fail: {error}"):
        strike(folder, rank, "link", refuse)
    assert rank.returncode == -signal.SIGKILL
