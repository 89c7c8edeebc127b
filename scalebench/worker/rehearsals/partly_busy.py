"""Computation that keeps the processor busy for a part of its time, and waits for the rest.

On a share of a processor a rank is stopped as soon as it has used it up, at moments of its own, and
goes on when the next period begins. So what is played has to use as much processor time as the
step does, and to be stopped for it; the rest of the step is waiting that no share makes longer.
"""

import time

from scalebench.spec.probes import Rehearsal
from scalebench.worker.process.context import JobContext
from scalebench.worker.rehearsals.piece import Piece

TURN_S = 0.02
"""A rank waits and then computes in turns of about this length, as the layers of a model do."""


class PartlyBusy:
    """A rank's computation of a step.

    What is sent has just been computed: so in each turn waiting comes first.

    Args:
        piece: What the processor is busy with.
        busy: Processor seconds of a second of computation.
        share: Of a processor that the rank has: the computing of a turn takes so much longer.

    Attributes:
        waiting: Seconds of waiting in a second of computation.
    """

    def __init__(self, piece: Piece, busy: float, share: float) -> None:
        self.piece, self.busy = piece, busy
        self.waiting = max(0.0, 1.0 - busy / share)
        self._owed_s = 0.0

    def repeat(self, seconds: float) -> float:
        """Wait and compute for ``seconds``; return 0: what is owed is kept here."""
        turns = max(1, round(seconds / TURN_S))
        for _ in range(turns):
            time.sleep(self.waiting * seconds / turns)
            self._compute(self.busy * seconds / turns)
        return 0.0

    def _compute(self, cpu_s: float) -> None:
        """Use processor time, seconds: in whole pieces, so a little is left for the next turn."""
        self._owed_s += cpu_s
        while self._owed_s > 0:
            before_s = time.thread_time()
            self.piece.compute()
            self._owed_s -= time.thread_time() - before_s

    def adapt(self, wanted_s: float, took_s: float) -> None:
        """Wait more, or less, so that what took ``took_s`` takes ``wanted_s``."""
        self.waiting = max(0.0, self.waiting + 1.0 - took_s / wanted_s)


def shares_of(context: JobContext[Rehearsal]) -> tuple[float, ...]:
    """Return the share of a processor that each rank has; 1 where there is no quota."""
    hosts, size = context.job.virtual_hosts, context.job.world_size
    shares = None if hosts is None else hosts.shares(size)
    return shares or (1.0,) * size
