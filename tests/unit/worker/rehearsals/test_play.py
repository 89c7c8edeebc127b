"""What is kept of steps that ranks play, on a clock that only they move."""

from types import SimpleNamespace

import pytest

from scalebench.spec.probes import Rehearsal, RehearsedOperation, StepRehearsal
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.worker.collectives import operations
from scalebench.worker.process.context import JobContext
from scalebench.worker.rehearsals import groups, partly_busy, play, steps
from scalebench.worker.rehearsals.piece import FIRST
from scalebench.worker.rehearsals.play import rehearse

MESSAGE_S = 0.3
LAB = {"link_bit_per_s": (100_000_000,)}


class Rank(JobContext):
    """The first of two ranks; the other one does the same."""

    def barrier(self) -> None:
        pass

    def agree_sum(self, values: list[float]) -> list[float]:
        return [2 * value for value in values]


class FirstOfUnequals(Rank):
    """The other one, with a smaller share, has nothing to say."""

    def agree_sum(self, values: list[float]) -> list[float]:
        return values


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes while a rank waits, computes (1 ms a piece) or sends."""
    time = SimpleNamespace(now_s=0.0, used_s=0.0)

    def compute(_: object) -> None:
        time.used_s += 0.001
        time.now_s += 0.005

    def sleep(seconds: float) -> None:
        time.now_s += seconds

    def message(*_: object) -> operations.Operation:
        return operations.Operation(lambda: sleep(MESSAGE_S), None, None, 4)  # type: ignore[arg-type]

    time.perf_counter, time.thread_time, time.sleep = lambda: time.now_s, lambda: time.used_s, sleep
    for module in (play, partly_busy, steps):
        monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(play.Piece, "compute", compute)
    monkeypatch.setattr(groups, "build", message)
    return time


@pytest.mark.parametrize(
    ("kind", "shares"),
    [(Rank, {"cpus_per_rank": 0.2}), (FirstOfUnequals, {"cpu_shares": (0.2, 0.1)})],
)
def test_ranks_that_wait_spend_the_same_time_in_messages(
    clock: SimpleNamespace, kind: type[Rank], shares: dict[str, object]
) -> None:
    message = RehearsedOperation(op="all_reduce", size_bytes=4, ready_s=0.5, needed_s=0.5)
    plan = StepRehearsal(
        computing_s=1.0, computing_cpu_s=0.1, operations=(message,), blocks=2, num_steps=3
    )
    hosts = VirtualHosts.model_validate(LAB | shares)
    job = {"world_size": 2, "device": "cpu", "backend": "gloo", "threads": 1}
    context = kind(Rehearsal(**job, virtual_hosts=hosts, steps=(plan,)), 0, 0, None)
    (found,) = rehearse(context).exposed
    assert found == pytest.approx((MESSAGE_S,) * 6)
    # the computation alone, 2 × 4 steps, and the piece's warm-up
    assert clock.now_s == pytest.approx(1.0 + 8 * 1.3 + FIRST * 0.005, abs=0.05)
    assert clock.used_s == pytest.approx(9 * 0.1 + FIRST * 0.001, abs=0.01)
