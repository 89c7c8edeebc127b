"""Watches the steps of a user's script in one rank: takes marks, follows the schedule, ends it.

Between two steps there is one mark and one look-up in a table. Everything else happens at the
borders of blocks, whose first step counts for nothing.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from scalebench.worker.attach import facts, timing
from scalebench.worker.attach.batches import Batches, FeedCounts, Inputs
from scalebench.worker.attach.checks import Checks
from scalebench.worker.attach.checks.replicas import Made
from scalebench.worker.attach.hooks import PATIENCE, SEEN, Between, GapTimes, OptimizerCalls
from scalebench.worker.attach.instruments import HostWaits, Traces, UnusedSearch
from scalebench.worker.attach.timing import Agreement
from scalebench.worker.attach.traffic import (
    NO_GROUP,
    NO_OPTIMIZER,
    SMALL_GROUP,
    WRONG_DEVICE,
    ScriptProblem,
    Traffic,
    TrafficWatch,
)
from scalebench.worker.portable import allocator_retries, between, clock_for, memory

MOST_ENDINGS = 3
"""A script that catches SystemExit is asked again at its next steps; then it is ended by force."""


MOST_BACKWARDS = 4096
"""A script with that many backward passes before any call of an optimizer has none that is seen."""


class Done(SystemExit):
    """Ends the script: everything was measured."""


class Watch:
    """One rank's steps.

    Args:
        request: What the supervising process asks for; see `scalebench.worker.script.supervise`.
        keep: Stores the rank's record.
        connect: See `Agreement`.

    Attributes:
        marks: The beginning of the first step, then the end of every call that matters; None in
            bare steps.
        over: Whether the record is stored.
        loaded: Checkpoints that were loaded from the working folder.
    """

    def __init__(
        self,
        request: dict[str, Any],
        keep: Callable[[dict[str, Any]], None],
        connect: Callable[[], Any] | None = None,
    ) -> None:
        self.request = request
        self.keep = keep
        self.rank: int = request["rank"]
        self.world_size: int = request["world_size"]
        self.clock = clock_for(request["device"])
        self.batches = Batches(self.clock)
        self.traces = Traces(request["device"])
        self.between = Between()
        self.waits = HostWaits(request["device"])
        self.search = UnusedSearch()
        self.calls = OptimizerCalls()
        self.traffic = TrafficWatch()
        self.inputs = Inputs()
        self.made = Made()
        self.checks = Checks(request["device"], self.world_size, self.made)
        self.agreement = Agreement(
            self.rank, self.world_size, connect, request["limit_s"], request.get("key", "")
        )
        self.marks: list[Any] = []
        self.host_ns: list[int | None] = []
        self.fed: list[FeedCounts | None] = []
        self.backwards: list[int] = [0]
        self.gaps: dict[int, GapTimes] = {}
        self.num_calls = 0
        self.num_backwards = 0
        self.loaded: list[str] = []
        self.explicit = False
        self.over = False
        self.schedule: timing.Schedule | None = None
        self.exchange_every = 1
        self.optimizers: dict[int, Any] = {}
        self.trained_as: dict[str, Any] = {}
        self._period = 1
        self._actions: dict[int, list[Callable[[], None]]] = {}
        self._bare_until: int | None = None
        self._had_group = False
        self._traffic: Traffic | None = None
        self._operations: int | None = None
        self._met: list[int] = []
        self._endings = 0
        self._look_at = 0
        self._clean_from: tuple[int, bool] | None = None
        self._to_come: list[Any] = []
        self._looked_from = 0
        self._looked_at = 0
        self._memory: dict[str, Any] | None = None
        self._retries_before = 0

    def begin(self) -> None:
        """Take the first mark: something of the first step is about to happen."""
        if not self.marks and not self.clock.is_capturing():
            self.marks.append(self.clock.now())
            self.host_ns.append(time.monotonic_ns())

    def backward(self, roots: Any = None) -> None:
        """Note that a backward pass has begun, of the gradients of some tensors.

        One of tensors without data is no training: it counts operations.
        """
        first = roots[0] if isinstance(roots, (tuple, list)) and roots else roots
        if getattr(first, "is_meta", False):
            return
        if self.clock.is_capturing():
            SEEN.captured_pass = True
            return
        self.begin()
        self.backwards[-1] += 1
        self.num_backwards += 1
        if self.num_backwards == MOST_BACKWARDS and not self.num_calls:
            raise ScriptProblem(NO_OPTIMIZER.format(passes=self.num_backwards))
        self.calls.backward()
        if self.traffic.reduced:
            self.traffic.reduced.clear()
        if self._bare_until is None:
            self.batches.backward()
        self.checks.backward(self.num_calls, self.backwards[-1] == 1, roots)

    def loads(self, file: Any = None, *_: Any, **named: Any) -> None:
        """Note that the script loads a checkpoint; one in its working folder is named."""
        file = named.get("f", named.get("checkpoint_id", file))
        with suppress(TypeError, ValueError, OSError):
            path = os.path.relpath(getattr(file, "name", file))
            if not path.startswith(os.pardir) and path not in self.loaded:
                self.loaded.append(path)

    def optimizer_called(self, optimizer: Any) -> None:
        """Note that a call of an optimizer is over."""
        if self.clock.is_capturing():  # it runs when the graph is played
            SEEN.captured = optimizer
            return
        if self.over:
            self._end_again()
            return
        if id(optimizer) not in self.optimizers:
            self._get_to_know(optimizer)
        if not self.explicit and self.calls.matters(id(optimizer)):
            self._call_ended(optimizer=optimizer)

    def stepped(self, samples: int | None) -> None:
        """Note that the script says that a step is over."""
        if self.over:
            self._end_again()
            return
        if not self.explicit:
            if self.schedule is not None:
                return  # too late to count anew: the calls began after the warm-up
            self.explicit = True
            self.num_calls = self._look_at = 0
            self._clean_from = None
            self.marks, self.host_ns, self.fed = self.marks[-1:], self.host_ns[-1:], []
            self.backwards = self.backwards[-1:]
            self.gaps.clear()
        self.begin()
        self._call_ended(samples)

    def _call_ended(self, samples: int | None = None, optimizer: Any = None) -> None:
        times = self.between.take()
        if times is not None:
            self.gaps[self.num_calls] = times
        if self.num_calls == 0:
            self._retries_before = allocator_retries(self.request["device"]) or 0
        if self.num_calls == 0 and self.rank == 0:
            self._to_come = self.made.optimizers()
        if self.num_calls == 0 and optimizer is not None:
            self.checks.stepped(optimizer, self.traffic.reduced)
            self.traffic.reduced = None
            self.trained_as = self.batches.trained_as(self.inputs.rows, self.world_size)
        self.num_calls += 1
        self.backwards.append(0)
        self.inputs.stepped()
        if self._bare_until is not None and self.num_calls < self._bare_until:
            self.marks.append(None)
            self.host_ns.append(None)
            self.fed.append(None)
        else:
            self._bare_until = None
            self.batches.off = False
            self.marks.append(self.clock.now())
            self.host_ns.append(time.monotonic_ns())
            fed = self.batches.take()
            self.fed.append(fed if samples is None else fed._replace(samples=samples))
        if self.num_calls == timing.FIRST_LOOK:
            self._traffic = self.traffic.so_far()
        if self.schedule is None:
            self._look()
        if self.schedule is not None:
            self._follow()

    def _get_to_know(self, optimizer: Any) -> None:
        self.optimizers[id(optimizer)] = weakref.ref(optimizer)
        on_cuda = any(p.is_cuda for group in optimizer.param_groups for p in group["params"][:1])
        if on_cuda and self.request["device"] == "cpu":
            raise ScriptProblem(WRONG_DEVICE)

    def _look(self) -> None:
        """See whether the warm-up is over: on rank 0 by the steps, elsewhere by what it says."""
        if self.agreement.received is not None:
            self._adopt(self.agreement.received)
            return
        self._had_group = self._had_group or torch.distributed.is_initialized()
        if self.num_calls == timing.FIRST_LOOK:
            self.check_group()
        if not self.rank and (len(self._met) < 2 or self._met[-1] - self._met[-2] > 1):
            self._look_for_exchange()
        if self.rank or self.num_calls < max(self._look_at, timing.FIRST_LOOK):
            return
        period = 1 if self.explicit else self.calls.period()
        if period is None or self.num_calls % period or self._other_to_come():
            return
        if self.num_calls < timing.FIRST_LOOK * period:
            return
        decided = self._decide(period, self._step_s(period))
        if isinstance(decided, timing.Schedule):
            self.agreement.send(decided)
            self._adopt(decided)
        else:
            self._look_at = decided * period

    def _look_for_exchange(self) -> None:
        """Note the calls at which ranks exchange something: each has what one started later."""
        now = self.traffic.so_far() if self.world_size > 1 else None
        if now is None:
            return
        if self._operations is not None and now.operations > self._operations:
            self._met.append(self.num_calls)
        self._operations = now.operations

    def _other_to_come(self) -> bool:
        """Tell whether an optimizer that trains other parameters has not been called so far."""
        self._to_come = [one for one in self._to_come if id(one()) not in self.optimizers]
        if self.explicit or self.num_calls >= PATIENCE:
            self._to_come = []
        return bool(self._to_come and facts.train_others(self._to_come, self.optimizers.values()))

    def _decide(self, period: int, step_s: list[float]) -> timing.Schedule | int:
        """Return the schedule, or the number of steps after which to look again."""
        plan = self.request["plan"]
        if self._clean_from is None:
            found = timing.first_steady(step_s, plan)
            queued = self._calls_from_queue()
            goes_on = queued > self.num_calls and sum(step_s) < plan["max_warmup_s"] / 6
            if found is None or goes_on:
                return self.num_calls // period + timing.LOOK_EVERY
            self._clean_from = (max(found[0] * period, min(queued, self.num_calls)), found[1])
        first_call, steady = self._clean_from
        first_call = max(first_call, *self._met[:1], 0)
        traffic = self._traffic_since()
        is_silent = traffic is not None and traffic[0] == 0
        may_wait = self.world_size > 1 and (is_silent or len(self._met) == 1)
        self.exchange_every = timing.exchange_every(self._met, period)
        first = -(-first_call // period)
        return timing.decide(step_s, plan, period, first, steady, may_wait, self.exchange_every)

    def _calls_from_queue(self) -> int:
        """Return how many calls took batches that workers had made before the first step.

        Those cost no waiting, as later ones may.
        """
        settings = self.batches.loader or {}
        left = (settings.get("num_workers") or 0) * (settings.get("prefetch_factor") or 0)
        if not left:
            return 0
        for call, fed in enumerate(self.fed):
            left -= fed.batches if fed else 0
            if left < 0:
                return call
        return len(self.fed) + left

    def _step_s(self, period: int) -> list[float]:
        """Return the steps so far as far as the device has got, seconds, without evaluation."""
        step_s: list[float] = []
        for found in between(self.clock, self.marks[::period]):
            if found is None:
                break
            calls = range(len(step_s) * period, (len(step_s) + 1) * period)
            gaps_s = sum(sum(self.gaps.get(call, ())) for call in calls)
            step_s.append(max(found - gaps_s, 0.0))
        return step_s

    def _adopt(self, decided: timing.Schedule) -> None:
        self.schedule = decided
        self._period = decided.period
        self.calls.order = None

        def at(step: int, action: Callable[[], None]) -> None:
            self._actions.setdefault(step, []).append(action)

        at(decided.clean_end, self._read_memory)
        for block in (*decided.blocks[:1], *decided.blocks[-1:]):
            at(block.first, self._look_at_models)
        for block in decided.blocks:
            if block.kind == "traced":
                at(block.first, lambda first=block.first: self._begin_trace(first))  # type: ignore[misc]
                at(block.end, self._end_trace)
            elif block.kind == "bare":
                at(block.first + 1, lambda end=block.end: self._begin_bare(end))  # type: ignore[misc]
        at(decided.end, self._finish)
        step = self.num_calls // self._period
        if step > decided.clean_end:
            self._read_memory()
        if any(step > block.first for block in decided.blocks if block.kind == "traced"):
            self.traces.failure = "the schedule reached this rank after its first traced step"
        if step > decided.end:
            self._finish()

    def _follow(self) -> None:
        step, rest = divmod(self.num_calls, self._period)
        if rest:
            return
        self.traces.mark()
        for action in self._actions.get(step, ()):
            action()

    def _begin_trace(self, first: int) -> None:
        self.traces.begin(first)
        self.batches.tracing = True
        self._looked_from = self.num_calls
        self.waits.begin()
        if self.waits.unavailable is None:
            self.search.begin()

    def _end_trace(self) -> None:
        self.traces.end()
        self.batches.tracing = False
        self.waits.end()
        self.search.end()
        self._looked_at += (self.num_calls - self._looked_from) // self._period

    def _look_at_models(self) -> None:
        self.checks.is_due = True

    def _begin_bare(self, end: int) -> None:
        self._bare_until = end * self._period
        self.batches.off = True

    def _read_memory(self) -> None:
        self._memory = memory(self.request["device"], self._retries_before)

    def _finish(self) -> None:
        self.store()
        if not self.request["to_the_end"]:
            self.agreement.tell_end()
            raise Done(0)

    def _end_again(self) -> None:
        """End a script that has caught the SystemExit that was to end it."""
        if self.request["to_the_end"]:
            return
        self._endings += 1
        if self._endings >= MOST_ENDINGS:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        raise Done(0)

    def is_left_alone(self) -> bool:
        """Tell whether others have ended: with uneven data they come earlier to the last step."""
        return self.schedule is not None and self.agreement.others_end()

    def check_group(self) -> None:
        """Raise ScriptProblem if some ranks know nothing of others."""
        if self.world_size > 1 and not self._had_group:
            raise ScriptProblem(NO_GROUP)
        if torch.distributed.is_initialized():
            size = torch.distributed.get_world_size()
            if size < self.world_size:
                raise ScriptProblem(SMALL_GROUP.format(size=size, ranks=self.world_size))

    def store(self) -> None:
        """Store the record of everything so far."""
        self.over = True
        self.agreement.close()
        self.clock.wait_for_all()
        folder = Path(self.request["folder"])
        self.traces.store(folder, self.rank)
        if self._memory is None:
            self._read_memory()
        known = [of() for of in self.optimizers.values()]
        self.keep(
            {
                "period": self._period_so_far(),
                "schedule": None if self.schedule is None else self.schedule.to_json(),
                "call_s": between(self.clock, self.marks),
                "host_ns": self.host_ns,
                "outside_s": self._outside_s(),
                "gaps": [[call, *times] for call, times in self.gaps.items()],
                "fed": [None if fed is None else [None, *fed[1:]] for fed in self.fed],
                "explicit": self.explicit,
                "traces": self.traces.blocks,
                "trace_failure": self.traces.failure,
                "memory": self._memory,
                "backwards": self.backwards,
                "input_elements": self.inputs.elements,
                **self.trained_as,
                "given_print": self.inputs.print,
                "traffic": self._traffic_since(),
                "looked_at": {
                    "host_waits": self.waits.found(self._looked_at),
                    "host_waits_unavailable": self.waits.unavailable,
                    "unused_search_s": self.search.found(self._looked_at),
                    "loader": self.batches.loader,
                },
                "exchange_every": self.exchange_every,
                "loaded": self.loaded,
                "checks": self._checks([one for one in known if one is not None]),
                **facts.of_training(
                    [one for one in known if one is not None], self.request["device"]
                ),
            }
        )

    def _traffic_since(self) -> list[int] | None:
        """Return the traffic since the first look; None: not known."""
        now, before = self.traffic.so_far(), self._traffic
        if now is None or before is None or now.operations < before.operations:
            return None
        return [now[i] - before[i] for i in range(len(now))]

    def _checks(self, optimizers: list[Any]) -> dict[str, Any] | None:
        """Return what tells whether the ranks train alike; None: they could not be looked at."""
        noted = self.checks.end(self.num_calls, optimizers)
        if noted is None:
            return None
        took_s = self.checks.took_s + self.batches.seen.took_s
        more = {"given": self.inputs.prints, "sends_parts": self.traffic.sends_parts}
        return {**noted, **self.batches.seen.noted(), **more, "took_s": took_s}

    def _period_so_far(self) -> int:
        if self.schedule is not None:
            return self.schedule.period
        return 1 if self.explicit else self.calls.period() or 1

    def _outside_s(self) -> list[float | None]:
        """Return, for each call, the seconds between the last one and the next batch's request.

        None where no batch was asked for.
        """
        found: list[float | None] = []
        for i, fed in enumerate(self.fed):
            mark = self.marks[i]
            known = fed is not None and mark is not None and fed.began is not None
            found.append(self.clock.seconds(mark, fed.began) if known and fed else None)
        return found
