"""Which steps are measured how, as rank 0 decides it; and how that reaches the other ranks.

How rank 0's schedule reaches the other ranks: through a store apart from the script's groups.

The other ranks wait for it in a thread of their own, inside the store's own code, which lets go of
the interpreter: their steps are not held up.
"""

from __future__ import annotations

import hmac
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from scalebench.worker.portable import FEWEST_STEPS, MAX_STEPS, how_many, steady_start

FIRST_LOOK = FEWEST_STEPS
LOOK_EVERY = 5
"""After how many steps the warm-up is looked at, and how often from then on."""

KINDS = ("paired", "traced", "bare")
LEAST_EXTRA = 0.02
"""Of the time: what long steps take beyond usual ones, if it is to be looked after."""
FEWEST_CYCLES = 8
"""From one long step to the next, in a window: with fewer it matters where the window begins."""
REGULAR = 0.8
"""Of the distances between long steps: so many are the same where they are regular."""
MOST_WINDOWS = 10
MOST_WAITED = 20
"""A window for the sake of long steps, or of the first exchange, is at most so many usual ones."""
MOST_ROUNDS = 3
"""One round of whole cycles may take so many times as long as all rounds are to."""
MOST_ROUNDS_OF_EXCHANGES = 10
MOST_TRACED_STEPS = 128
"""The same where only a whole cycle holds what ranks exchange, which a traced block is made for."""
MARGIN_S = 0.5
MARGIN_STEPS = 5
"""How long before its first change of behaviour a schedule is sent to the other ranks."""
KEY = "schedule"
END = "end{rank}"

SIGNATURE_CHARACTERS = 64

LISTEN_S = 0.5
"""How long a rank listens before it looks whether it is to stop."""

CLOSE_LIMIT_S = 5.0
"""How long a rank waits at its end for its own thread to stop."""


class Block(NamedTuple):
    """Steps of one kind; the first of them counts for nothing. See `records.rank.Block`."""

    kind: str
    first: int
    num_steps: int

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.first + self.num_steps


class Schedule(NamedTuple):
    """From which step on which phase runs.

    Attributes:
        period: Calls of optimizers that make a step.
        steady: Whether the steady state was found before the limits of the warm-up.
        first_clean: The first step that counts.
        clean_end: The step after the last of the clean window.
        blocks: The rounds after it. Where the window is short, they begin once every rank knows.
        end: The step before which the script is ended.
    """

    period: int
    steady: bool
    first_clean: int
    clean_end: int
    blocks: list[Block]
    end: int

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {**self._asdict(), "blocks": [list(block) for block in self.blocks]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Schedule:
        """Return what `to_json` was made of."""
        return cls(**{**stored, "blocks": [Block(*block) for block in stored["blocks"]]})


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def first_steady(step_s: Sequence[float], plan: dict[str, Any]) -> tuple[int, bool] | None:
    """Return the first step that may count and whether it is steady; None: the warm-up goes on.

    ``step_s``: all steps so far, seconds; the first one is the script's start and left out.
    ``plan`` has the fields of `scalebench.spec.StepPlan`.
    """
    found = steady_start(step_s[1:])
    if found is not None:
        return found + 1, True
    gave_up = len(step_s) > plan["max_warmup_steps"] or sum(step_s[1:]) >= plan["max_warmup_s"]
    return (len(step_s), False) if gave_up else None


def decide(
    step_s: Sequence[float],
    plan: dict[str, Any],
    period: int,
    first_clean: int,
    steady: bool = True,
    may_wait: bool = False,
    exchange_every: int = 1,
) -> Schedule | int:
    """Return the schedule, or the number of steps after which to ask again.

    Until the clean window is nearly full, nothing has to be decided: by then it is known whether
    some of its steps are long, and how far apart these are.

    Args:
        step_s: All steps so far, seconds.
        plan: The fields of `scalebench.spec.StepPlan`.
        period: Calls of optimizers that make a step.
        first_clean: The first step that may count, by `first_steady`.
        steady: Whether that is known to be steady.
        may_wait: Whether the ranks have exchanged nothing so far, or once: the window then goes on
            until they have, as far as it may.
        exchange_every: Steps from one exchange to the next: window and blocks have whole cycles.
    """
    so_far = len(step_s)
    recent = step_s[first_clean:] or step_s[-LOOK_EVERY:]
    mean_s = max(sum(recent) / len(recent), 1e-6)
    margin = max(MARGIN_STEPS, math.ceil(MARGIN_S / mean_s))
    cycle, wanted = long_steps(recent)
    most_rounds = MOST_ROUNDS
    if 1 < exchange_every <= MOST_TRACED_STEPS:
        cycle, most_rounds = exchange_every, MOST_ROUNDS_OF_EXCHANGES
    if plan["steps"] is not None:
        first_clean = so_far
        clean_end = so_far + int(plan["steps"]) + 1
    else:
        window_s = max(plan["window_s"], plan["energy_s"] or 0.0)
        usual = max(plan["min_steps"], math.ceil(window_s / mean_s))
        wanted = max(usual, min(wanted, MOST_WINDOWS * usual))
        every = exchange_every if exchange_every < MOST_WAITED * usual else 1
        wanted = math.ceil(wanted / every) * every + 1
        if may_wait and so_far - first_clean < MOST_WAITED * usual:
            wanted = max(wanted, so_far - first_clean + LOOK_EVERY + margin)
        missing = int(first_clean + wanted - so_far - (margin if every > 1 else MARGIN_STEPS))
        if missing > 0:
            return so_far + missing
        clean_end = so_far + margin
        if every > 1:
            cycles = math.ceil((so_far + MARGIN_STEPS - first_clean - 1) / every)
            clean_end = first_clean + 1 + cycles * every
    first_round = max(clean_end, so_far + margin)
    blocks = rounds(first_round, mean_s, plan, cycle, most_rounds)
    end = blocks[-1].end if blocks else first_round
    return Schedule(period, steady, first_clean, clean_end, blocks, end)


def exchange_every(met: Sequence[int], period: int) -> int:
    """Return every how many steps ranks exchange something, at the longest; 1: in each.

    Local averaging does so every 64 or 500 steps, and may do so once more where an epoch ends.
    ``met``: the first calls of optimizers with an exchange since the one before, up to two in a
    row; ``period`` calls make a step.
    """
    apart = [met[i + 1] - met[i] for i in range(len(met) - 1)]
    return max(apart) // period if apart and apart[-1] > period else 1


def long_steps(step_s: Sequence[float]) -> tuple[int, int]:
    """Return after how many steps long ones come again, and how many have to be in a window.

    Steps are long if they exceed the median one by half as much as the longest does. Where these
    have little of the time, or are not regular, the first number is 1. Where there is but one so
    far, it may be the first of many.
    """
    usual_s = median(step_s)
    limit_s = (usual_s + max(step_s)) / 2
    extra_s = sum(one - usual_s for one in step_s if one > limit_s)
    if extra_s < LEAST_EXTRA * sum(step_s):
        return 1, 0
    is_long = [one > limit_s for one in step_s]
    starts = [i for i, long in enumerate(is_long) if long and not (i and is_long[i - 1])]
    if len(starts) < 2:
        return 1, FEWEST_CYCLES // 2 * max(starts[0], len(step_s) - starts[0])
    apart = [starts[i + 1] - starts[i] for i in range(len(starts) - 1)]
    cycle = sorted(apart)[len(apart) // 2]
    is_regular = len(apart) > 2 and apart.count(cycle) >= REGULAR * len(apart)
    wanted = math.ceil(FEWEST_CYCLES * sum(apart) / len(apart))
    return cycle if is_regular else 1, wanted


def rounds(
    first: int,
    step_s: float,
    plan: dict[str, Any],
    cycle: int = 1,
    most_rounds: float = MOST_ROUNDS,
) -> list[Block]:
    """Return the rounds from a step on: short blocks clean, traced and bare, by turns.

    Where steps repeat with a cycle, a block has whole cycles, if that does not take too long.
    """
    if not plan["trace"]:
        return []
    whole = cycle * math.ceil(MAX_STEPS / cycle)
    round_s = step_s * len(KINDS) * (whole + 1)
    if cycle > 1 and round_s <= most_rounds * plan["rounds_s"]:
        num_rounds, count = max(1, int(plan["rounds_s"] / round_s)), whole
    else:
        num_rounds, count = how_many(plan["rounds_s"], step_s, len(KINDS))
    kinds = KINDS * min(num_rounds, plan["max_rounds"])
    return [Block(kind, first + i * (count + 1), count + 1) for i, kind in enumerate(kinds)]


def store_at(address: dict[str, Any], limit_s: float) -> Any:
    """Connect to the store at ``host`` and ``port``, which the supervising process serves."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=limit_s)
    store = TCPStore(address["host"], address["port"], timeout=limit, wait_for_workers=False)
    return PrefixStore("scalebench", store)


class Agreement:
    """Sends or receives the schedule.

    ``connect`` opens a connection to the store that no other thread uses; None: there is one rank.
    ``limit_s``: how long ranks may take until the schedule is known. They sign it with ``key``.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        connect: Callable[[], Any] | None,
        limit_s: float,
        key: str = "",
    ) -> None:
        self.rank = rank
        self._world_size = world_size
        self.received: Schedule | None = None
        self._store: Any = None
        self._listener: threading.Thread | None = None
        self._stop = threading.Event()
        self._connect = connect
        self._limit_s = limit_s
        self._key = key
        if world_size > 1 and connect is not None:
            if rank == 0:
                self._store = connect()
            else:
                self._listener = threading.Thread(
                    target=self._listen, name="scalebench", daemon=True
                )
                self._listener.start()

    def _listen(self) -> None:
        try:
            assert self._connect is not None
            self._store = self._connect()
            if self._is_sent():
                told = json.loads(self._unsealed(self._store.get(KEY).decode()))
                self.received = None if told is None else Schedule.from_json(told)
        except Exception:  # rank 0 has gone: it, or the launcher, says why
            return

    def _is_sent(self) -> bool:
        """Wait for rank 0 to say something; False: this rank ends, or rank 0 has gone."""
        until = time.monotonic() + self._limit_s
        while not self._stop.is_set() and time.monotonic() < until:
            before = time.monotonic()
            try:
                self._store.wait([KEY], timedelta(seconds=LISTEN_S))
            except Exception:
                if time.monotonic() - before < LISTEN_S / 2:  # no time-out
                    return False
            else:
                return True
        return False

    def close(self) -> None:
        """Wait for nothing more: a thread that waits while its process ends aborts the process.

        Every end of a script has to come here, that of one that fails, too.
        """
        self._stop.set()
        if self.rank == 0 and self.received is None and self._store is not None:
            self._store.set(KEY, self._sealed(json.dumps(None)))
        if self._listener is not None:
            self._listener.join(CLOSE_LIMIT_S)

    @property
    def is_stuck(self) -> bool:
        """Whether the thread did not stop: it still connects to the store."""
        return self._listener is not None and self._listener.is_alive()

    def send(self, schedule: Schedule) -> None:
        """Tell every rank, this one included."""
        if self._store is not None:
            self._store.set(KEY, self._sealed(json.dumps(schedule.to_json())))
        self.received = schedule

    def tell_end(self) -> None:
        """Tell every rank that this one has measured everything and ends."""
        key = END.format(rank=self.rank)
        with suppress(Exception):  # it is not served any more
            if self._store is not None:
                self._store.set(key, self._sealed(END))
                self._store.check([key])  # is answered once it is there: a set waits for nothing

    def others_end(self) -> bool:
        """Tell whether another rank has ended so: what fails after that may fail because of it."""
        if self._store is None:
            return False
        ended = [END.format(rank=r) for r in range(self._world_size) if r != self.rank]
        try:
            told = [self._store.get(key).decode() for key in ended if self._store.check([key])]
            return any(self._unsealed(one) == END for one in told)
        except Exception:  # forged, or no longer served
            return False

    def _sealed(self, text: str) -> str:
        """Return a text with its signature before it: others on this machine can write as well."""
        return hmac.new(self._key.encode(), text.encode(), "sha256").hexdigest() + text

    def _unsealed(self, sealed: str) -> str:
        text = sealed[SIGNATURE_CHARACTERS:]
        if not hmac.compare_digest(sealed.encode(), self._sealed(text).encode()):
            raise ValueError("not signed by rank 0")
        return text
