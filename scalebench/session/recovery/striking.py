"""Sending the signals that make ranks fail, each a random moment after its step."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scalebench.records.measured.fault_events import CAUGHT_UP, Event, FaultFolder
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec.recovery import FaultKind, FaultPlan

POLL_S = 0.002
CALM_POLL_S = 0.05
"""How often is looked while a job recovers: its time is being measured, so seldom."""
SIGNALS: dict[FaultKind, signal.Signals] = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


@dataclass
class Striking:
    """Sends the signal of each fault when its step is done, a random moment later.

    In an attempt that continues after a failure, none is sent before the rank has caught up.

    Attributes:
        plans: Of a job's attempts, in order.
        cut_link: Cuts the link of the rank's host, where that is the fault.
        failed_ns: Attempt → when it was sent, on the monotonic clock; without those in which the
            rank raises itself, and those that did not come so far.

    Raises:
        NoTimeline: A fault could not be brought about. At the end of the block: the ranks, which
            wait for it, have been ended by then.
    """

    folder: FaultFolder
    plans: Sequence[FaultPlan]
    cut_link: Callable[[], None] | None = None
    failed_ns: dict[int, int] = field(default_factory=dict)
    _error: Exception | None = None
    _struck_rank: int | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Striking":
        if any(self._is_sent(plan) for plan in self.plans):
            self._thread = threading.Thread(target=self._strike_all, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and raised is None:
            raise NoTimeline(
                f"rank {self._struck_rank} could not be made to fail: {self._error}"
            ) from self._error

    def _is_sent(self, plan: FaultPlan) -> bool:
        """Tell whether the rank does not fail by itself."""
        return plan.fails and (plan.kind in SIGNALS or self.cut_link is not None)

    def _strike_all(self) -> None:
        for plan in filter(self._is_sent, self.plans):
            events = self._wait_for_step(plan)
            if events is None or self._error is not None:
                return
            self._strike(plan, events)

    def _wait_for_step(self, plan: FaultPlan) -> list[Event] | None:
        """Return a rank's events when it is time to strike it; None: the block ended before."""
        poll_s = CALM_POLL_S if plan.attempt else POLL_S
        while not self._over.wait(poll_s):
            events = self.folder.events(plan.attempt, plan.rank)
            counted_from = _counted_from(events, plan)
            if counted_from is None:
                continue
            poll_s, due = POLL_S, counted_from + plan.at_step
            if any(e.name == "step" and e.number >= due for e in events):
                return events
        return None

    def _strike(self, plan: FaultPlan, events: list[Event]) -> None:
        chance = random.Random(f"{plan.at_step} {plan.attempt}")
        time.sleep(chance.uniform(0, _usual_step_s(events)))
        pid = next(event.number for event in events if event.name == "started")
        self._struck_rank = plan.rank
        failed_ns = time.monotonic_ns()
        try:
            if self.cut_link is not None:
                self.cut_link()
            else:
                os.kill(pid, SIGNALS[plan.kind])
            self.failed_ns[plan.attempt] = failed_ns
        except ProcessLookupError:
            pass  # it ended by itself
        except Exception as error:  # said by __exit__: a thread has nobody to raise it to
            self._error = error
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # or it would train for as long as a launch may take


def _counted_from(events: list[Event], plan: FaultPlan) -> int | None:
    """Return the step from which a plan counts its own; None: the rank is not there yet."""
    if plan.attempt == 0:
        return 0
    return next((event.number for event in events if event.name == CAUGHT_UP), None)


def _usual_step_s(events: list[Event]) -> float:
    times = [event.time_ns for event in events if event.name == "step"]
    return (times[-1] - times[-2]) / 1e9 if len(times) > 1 else 0.0
