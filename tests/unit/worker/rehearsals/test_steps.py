"""In which order a played step asks for its messages and waits for them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scalebench.spec.probes import RehearsedOperation, StepRehearsal
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.rehearsals.steps import PlayedStep

Log = list[tuple[str, object]]


class Working:
    """Notes how long a rank computes between two of its messages."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def repeat(self, seconds: float) -> float:
        if seconds > 0:
            self.log.append(("compute", round(seconds, 9)))
        return 0.0


class Messages:
    """Operations that note when they are begun, waited for, or done as a whole."""

    def __init__(self, log: Log) -> None:
        self.log, self.number = log, 0

    def operation(self, planned: RehearsedOperation) -> Operation:
        number, self.number = self.number, self.number + 1

        def begin() -> Callable[[], None]:
            self.log.append(("begin", number))
            return lambda: self.log.append(("wait", number))

        def run() -> None:
            self.log.append(("run", number))

        between_two = planned.op == "send_recv_ring"
        return Operation(run, None, None, 4, begin if between_two else None)  # type: ignore[arg-type]


@pytest.fixture
def link() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


def played(link: ThreadPoolExecutor, *operations: RehearsedOperation) -> Log:
    log: Log = []
    plan = StepRehearsal(computing_s=1.0, operations=operations)
    PlayedStep(plan, Working(log), Messages(log), link).step()  # type: ignore[arg-type]
    return log


def message(ready_s: float, needed_s: float) -> RehearsedOperation:
    return RehearsedOperation(op="send_recv_ring", size_bytes=4, ready_s=ready_s, needed_s=needed_s)


def test_two_messages_are_on_the_way_at_once(link: ThreadPoolExecutor) -> None:
    assert played(link, message(0.25, 0.5), message(0.25, 0.5)) == [
        ("compute", 0.25),
        ("begin", 0),
        ("begin", 1),
        ("compute", 0.25),
        ("wait", 0),
        ("wait", 1),
        ("compute", 0.5),
    ]


def test_what_came_is_waited_for_before_the_next_is_sent(link: ThreadPoolExecutor) -> None:
    log = played(link, message(0.0, 0.25), message(0.25, 0.5), message(0.5, 0.5))
    assert [one for one in log if one[0] != "compute"] == [
        ("begin", 0),
        ("wait", 0),
        ("begin", 1),
        ("wait", 1),
        ("begin", 2),
        ("wait", 2),
    ]


def test_a_collective_that_hides_is_done_while_the_rank_computes(
    link: ThreadPoolExecutor,
) -> None:
    hidden = RehearsedOperation(op="all_reduce", size_bytes=4, ready_s=0.25, needed_s=1.0)
    bare = RehearsedOperation(op="all_reduce", size_bytes=4, ready_s=0.5, needed_s=0.5)
    log = played(link, hidden, bare)
    assert [one for one in log if one[0] == "run"] == [("run", 0), ("run", 1)]
    assert [one for one in log if one[0] == "compute"] == [
        ("compute", 0.25),
        ("compute", 0.25),
        ("compute", 0.5),
    ]
    assert log.index(("run", 1)) == log.index(("compute", 0.5)) - 1
