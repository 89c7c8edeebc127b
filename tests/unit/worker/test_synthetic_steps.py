"""Steps without their models: messages in order, and work on a clock that only it moves."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from scalebench.spec.probes import Rehearsal, RehearsedOperation, StepRehearsal
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.worker import synthetic_steps
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.process.context import JobContext
from scalebench.worker.synthetic_steps import FIRST, PartlyBusy, SyntheticStep, rehearse

PIECE_S = 0.0002


class Processor:
    """Of a rank with a share of it: computing takes so many times as long."""

    def __init__(self, share: float) -> None:
        self.share, self.now_s, self.used_s = share, 0.0, 0.0
        self.turns: list[str] = []

    def compute(self) -> None:
        self.used_s += PIECE_S
        self.now_s += PIECE_S / self.share
        self._note("computed")

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._note("waited")

    def thread_time(self) -> float:
        return self.used_s

    def _note(self, what: str) -> None:
        if self.turns[-1:] != [what]:
            self.turns.append(what)


def worker(
    monkeypatch: pytest.MonkeyPatch, busy: float, share: float
) -> tuple[PartlyBusy, Processor]:
    processor = Processor(share)
    clock = SimpleNamespace(sleep=processor.sleep, thread_time=processor.thread_time)
    monkeypatch.setattr(synthetic_steps, "time", clock)
    return PartlyBusy(processor, busy, share), processor  # type: ignore[arg-type]


def test_a_rank_uses_its_processor_time_and_waits_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, processor = worker(monkeypatch, busy=0.1, share=0.2)
    assert work.repeat(1.0) == 0.0
    assert processor.used_s == pytest.approx(0.1, abs=PIECE_S)
    assert processor.now_s == pytest.approx(1.0, abs=PIECE_S / 0.2)
    assert processor.turns == ["waited", "computed"] * 50


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

    def message(*_: object) -> Operation:
        return Operation(lambda: sleep(MESSAGE_S), None, None, 4)  # type: ignore[arg-type]

    time.perf_counter, time.thread_time, time.sleep = lambda: time.now_s, lambda: time.used_s, sleep
    monkeypatch.setattr(synthetic_steps, "time", time)
    monkeypatch.setattr(synthetic_steps.Piece, "compute", compute)
    monkeypatch.setattr(synthetic_steps, "build", message)
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


Log = list[tuple[str, object]]


class Working:
    """Notes how long a rank computes between two of its messages."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def repeat(self, seconds: float) -> float:
        if seconds > 0:
            self.log.append(("compute", round(seconds, 9)))
        return 0.0


def noting(log: Log, number: int, between_two: bool) -> Operation:
    """An operation that notes when it is begun, waited for, or done as a whole."""

    def begin() -> Callable[[], None]:
        log.append(("begin", number))
        return lambda: log.append(("wait", number))

    run = partial(log.append, ("run", number))
    return Operation(run, None, None, 4, begin if between_two else None)  # type: ignore[arg-type]


@pytest.fixture
def link() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


def done(link: ThreadPoolExecutor, *operations: RehearsedOperation) -> Log:
    log: Log = []
    plan = StepRehearsal(computing_s=1.0, operations=operations)
    made = [noting(log, i, one.op == "send_recv_ring") for i, one in enumerate(operations)]
    SyntheticStep(plan, Working(log), made, link).step()
    return log


def message(ready_s: float, needed_s: float) -> RehearsedOperation:
    return RehearsedOperation(op="send_recv_ring", size_bytes=4, ready_s=ready_s, needed_s=needed_s)


def test_two_messages_are_on_the_way_at_once(link: ThreadPoolExecutor) -> None:
    assert done(link, message(0.25, 0.5), message(0.25, 0.5)) == [
        ("compute", 0.25),
        ("begin", 0),
        ("begin", 1),
        ("compute", 0.25),
        ("wait", 0),
        ("wait", 1),
        ("compute", 0.5),
    ]


def test_a_collective_that_hides_is_done_while_the_rank_computes(
    link: ThreadPoolExecutor,
) -> None:
    hidden = RehearsedOperation(op="all_reduce", size_bytes=4, ready_s=0.25, needed_s=1.0)
    bare = RehearsedOperation(op="all_reduce", size_bytes=4, ready_s=0.5, needed_s=0.5)
    log = done(link, hidden, bare)
    assert [one for one in log if one[0] == "run"] == [("run", 0), ("run", 1)]
    assert [one for one in log if one[0] == "compute"] == [
        ("compute", 0.25),
        ("compute", 0.25),
        ("compute", 0.5),
    ]
    assert log.index(("run", 1)) == log.index(("compute", 0.5)) - 1
