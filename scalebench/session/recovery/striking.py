"""Sending the signal that makes a rank fail, a random moment after its step."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scalebench.records.fault_events import Event, FaultFolder
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec.recovery import FaultKind, FaultPlan

POLL_S = 0.002
SIGNALS: dict[FaultKind, signal.Signals] = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


@dataclass
class Striking:
    """Sends the signal of a fault when its step is done, a random moment later.

    Attributes:
        cut_link: Cuts the link of the rank's host, where that is the fault.
        failed_ns: When it did, on the monotonic clock; None: not yet, or the rank raises itself.

    Raises:
        NoTimeline: The fault could not be brought about. At the end of the block: the ranks, which
            wait for it, have been ended by then.
    """

    folder: FaultFolder
    plan: FaultPlan
    cut_link: Callable[[], None] | None = None
    failed_ns: int | None = None
    _error: Exception | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Striking":
        if self.plan.kind in SIGNALS or self.cut_link is not None:
            self._thread = threading.Thread(target=self._strike, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and raised is None:
            raise NoTimeline(
                f"rank {self.plan.rank} could not be made to fail: {self._error}"
            ) from self._error

    def _strike(self) -> None:
        while not self._over.wait(POLL_S):
            events = self.folder.events(0, self.plan.rank)
            if any(e.name == "step" and e.number >= self.plan.at_step for e in events):
                break
        else:
            return
        chance = random.Random(self.plan.at_step)
        time.sleep(chance.uniform(0, _usual_step_s(events)))
        pid = next(event.number for event in events if event.name == "started")
        self.failed_ns = time.monotonic_ns()
        try:
            if self.cut_link is not None:
                self.cut_link()
            else:
                os.kill(pid, SIGNALS[self.plan.kind])
        except ProcessLookupError:  # it ended by itself
            self.failed_ns = None
        except Exception as error:  # said by __exit__: a thread has nobody to raise it to
            self.failed_ns, self._error = None, error
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # or it would train for as long as a launch may take


def _usual_step_s(events: list[Event]) -> float:
    """Return the time between the last two steps, seconds."""
    times = [event.time_ns for event in events if event.name == "step"]
    return (times[-1] - times[-2]) / 1e9 if len(times) > 1 else 0.0
