"""Steps without their models: messages in order, and work on a clock that only it moves."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from scalebench.spec.probes import RehearsedOperation, StepRehearsal
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.synthetic_steps import SyntheticStep

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
