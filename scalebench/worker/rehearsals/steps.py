"""A step without its model: real messages between ranks that compute, where the step has them.

A collective that hides behind computation is carried by a thread of its own, one after the other,
as a backend does it; of messages between two ranks several are on the way at once. A rank takes the
time that it spends in messages, or waiting for them: those that nothing hides, waking up for them,
and waiting for the last rank.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from scalebench.spec.probes import StepRehearsal
from scalebench.worker.collectives.operations import Operation
from scalebench.worker.rehearsals.groups import Groups


class Work(Protocol):
    """What ranks do between messages."""

    def repeat(self, seconds: float) -> float:
        """Do it for ``seconds``; return what is left of them, or was taken: for the next call."""
        ...


class _Moment(NamedTuple):
    """What a rank does when its computation has come so far; it waits before it asks for more."""

    at_s: float
    asks: bool
    number: int


class PlayedStep:
    """One rank's part of a step; its buffers stay from step to step."""

    def __init__(
        self,
        plan: StepRehearsal,
        work: Work,
        groups: Groups,
        link: ThreadPoolExecutor,
    ) -> None:
        self.plan, self.work, self.link = plan, work, link
        self.operations: list[Operation] = [groups.operation(each) for each in plan.operations]
        asked = [_Moment(each.ready_s, True, i) for i, each in enumerate(plan.operations)]
        needed = [
            _Moment(each.needed_s, False, i)
            for i, each in enumerate(plan.operations)
            if each.needed_s > each.ready_s
        ]
        self.moments = sorted(asked + needed)

    def step(self) -> float:
        """Play a step; return how much of it this rank was in messages, seconds."""
        come_s = owed_s = waited_s = 0.0
        under_way: dict[int, Callable[[], None]] = {}
        for moment in self.moments:
            owed_s = self.work.repeat(owed_s + moment.at_s - come_s)
            come_s = moment.at_s
            began = time.perf_counter()
            self._act(moment, under_way)
            waited_s += time.perf_counter() - began
        self.work.repeat(owed_s + self.plan.computing_s - come_s)
        return waited_s

    def _act(self, moment: _Moment, under_way: dict[int, Callable[[], None]]) -> None:
        """Ask for a message or wait for one."""
        if not moment.asks:
            under_way.pop(moment.number)()
            return
        planned, operation = self.plan.operations[moment.number], self.operations[moment.number]
        wait: Callable[[], None]
        if operation.begin is None:
            wait = self.link.submit(operation.run).result
        else:
            wait = operation.begin()
        if planned.needed_s > planned.ready_s:
            under_way[moment.number] = wait
        else:
            wait()
