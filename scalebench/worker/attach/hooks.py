"""Where the watch is told of what the script does, and which calls end a training step.

Which calls of optimizers end a training step, and what a script does between two steps.

A step is a call of an optimizer after at least one backward pass. Calls without a backward pass
in between belong to the same step: inner and outer optimizers (ZeRO), one optimizer a parameter
group (DeepSpeed) or a parameter (optimizer in backward), several after one backward pass. Where
optimizers take turns, each after a backward pass of its own (a GAN), a step is one period of the
turns. Optimizers that were ever called after the same backward pass do not take turns: an outer one
that runs every few steps (DiLoCo) makes no longer step.

Where the watch is told of what the script does: optimizers, backward passes, DataLoaders.

Functions of the watch in the place of torch's own, and inside of what is compiled.

What ``torch.compile`` and CUDA graphs have taken over must not trace the watch: its clock and lists
would break the graph, have it compiled again at every step, or fail. Inside of a traced function a
call leaves a word in `SEEN` instead. Dynamo stores it each time after its graph has run, without a
graph break: a store that nothing reads there needs no guard. The watch reads it at the next thing
that it is told of.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.traffic import SPAWNS, ScriptProblem

LONGEST_PERIOD = 40
FEWEST_CALLS = 10
PATIENCE = 4 * LONGEST_PERIOD
"""Calls after which optimizers without a regular order are taken to make a step each."""
_dynamo: Any = torch._C._dynamo.eval_frame


class OptimizerCalls:
    """Counts the calls that matter: the first of each optimizer after a backward pass.

    Attributes:
        order: Key of the optimizer of each call that matters, until they are no longer wanted.
    """

    def __init__(self) -> None:
        self.order: list[int] | None = []
        self._backward = False
        self._together: dict[int, int] = {}

    def backward(self) -> None:
        """Note that a backward pass has begun."""
        self._backward = True

    def matters(self, optimizer: int) -> bool:
        """Tell whether this call of an optimizer is the first after a backward pass."""
        if not self._backward:
            if self.order:
                one, same = self._first_of(optimizer), self._first_of(self.order[-1])
                if one != same:
                    self._together[one] = same
            return False
        self._backward = False
        if self.order is not None:
            self.order.append(optimizer)
        return True

    def period(self) -> int | None:
        """Return how many calls make a step; see `find_period`."""
        return find_period([self._first_of(one) for one in self.order or ()])

    def _first_of(self, optimizer: int) -> int:
        """Return what stands for all optimizers that were called after the same backward pass."""
        while optimizer in self._together:
            optimizer = self._together[optimizer]
        return optimizer


def find_period(order: Sequence[int]) -> int | None:
    """Return how many calls make a step; None: more calls are needed to tell.

    The smallest number with which the later half of the calls repeats: a script may begin in
    another way. It holds every optimizer that was ever called, unless one is not called again for
    long. Without such a number, every call is a step.
    """
    if len(order) < FEWEST_CALLS:
        return None
    last = order[-max(FEWEST_CALLS, len(order) // 2) :]
    for period in range(1, min(LONGEST_PERIOD, len(last) // 2) + 1):
        repeats = all(last[i] == last[i + period] for i in range(len(last) - period))
        if repeats and (len(order) >= PATIENCE or {*last} == {*order}):
            return period
    return 1 if len(order) >= PATIENCE else None


class GapTimes(NamedTuple):
    """Seconds between two steps, on the host."""

    evaluation_s: float
    checkpoint_s: float


class Between:
    """Notes what happens since the last step, in the thread that takes the steps.

    Evaluation is from ``module.eval()`` to ``module.train()``, or to the request for a batch to
    train on after others, as Lightning gives its modules their modes back without a call. Saving is
    ``torch.save``, ``torch.distributed.checkpoint``'s ``save`` and ``async_save``, and
    `hooks.SAVERS`. What a save writes in the background stops no step.
    """

    def __init__(self) -> None:
        self._evaluating_since: int | None = None
        self._saved_before_ns = 0
        self._evaluates = False
        self._evaluation_ns = 0
        self._saving_ns = 0
        self._depth = 0
        self._trains_in = threading.get_ident()

    def mode_changed(self, to_train: bool) -> None:
        """Note that a module is about to be evaluated, or trained again."""
        if not to_train:
            if self._evaluating_since is None:
                self._evaluating_since, self._evaluates = time.monotonic_ns(), False
                self._saved_before_ns = self._saving_ns
        elif self._evaluating_since is not None:
            saved_ns = self._saving_ns - self._saved_before_ns
            self._evaluation_ns += time.monotonic_ns() - self._evaluating_since - saved_ns
            self._evaluating_since = None

    def batch_asked(self, learns: bool) -> None:
        """Note that a batch is about to be read, with gradients on or off."""
        if learns and self._evaluates:
            self.mode_changed(to_train=True)
        self._evaluates = not learns and self.is_evaluating()

    def is_evaluating(self) -> bool:
        """Tell whether a module is evaluated."""
        return self._evaluating_since is not None

    def saving(self, save: Any) -> Any:
        """Return a function that saves and notes how long it took."""

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._trains_in:
                return save(*args, **kwargs)
            before = time.monotonic_ns()
            self._depth += 1
            try:
                return save(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._saving_ns += time.monotonic_ns() - before

        return timed

    def take(self) -> GapTimes | None:
        """Return what happened since the last call; None: nothing of the kind."""
        self._trains_in = threading.get_ident()
        told = GapTimes(self._evaluation_ns / 1e9, self._saving_ns / 1e9)
        self._evaluating_since = None  # a module left in that mode is not evaluated for ever
        self._evaluation_ns = self._saving_ns = 0
        return told if any(told) else None


class Seen:
    """What compiled code has done since the watch last looked.

    Attributes:
        optimizer: Made a step; None: none has.
        captured: Was called while a CUDA graph was captured; each replay calls it again.
        captured_pass: A backward pass was captured, without an optimizer or before it.
    """

    optimizer: Any = None
    captured: Any = None
    captured_pass: bool = False


SEEN = Seen()


def quietly(watch: Any, call: Any, *arguments: Any, **named: Any) -> Any:
    """Tell the watch what compiled code has done; then call something with ``torch.compile`` off.

    It would compile the watch's own functions.
    """
    before = _dynamo.set_eval_frame(None)
    try:
        catch_up(watch)
        return call(*arguments, **named)
    finally:
        _dynamo.set_eval_frame(before)


def catch_up(watch: Any) -> None:
    """Tell the watch of a step that compiled code has made."""
    optimizer = SEEN.optimizer
    if optimizer is not None:
        SEEN.optimizer = None
        watch.optimizer_called(optimizer)


def not_compiled(function: Any) -> Any:
    """Have a function run as it is where ``torch.compile`` meets it by itself; return it.

    Where it is called in a function that is being traced, it is traced as well: it has to ask
    ``torch.compiler.is_compiling()``.
    """
    code = function.__code__
    with suppress(AttributeError):  # of a version that differs: it may be compiled, and still works
        if hasattr(_dynamo, "skip_code"):
            _dynamo.skip_code(code)
        else:
            action = _dynamo._FrameAction
            strategy = _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT)
            _dynamo.set_code_exec_strategy(code, strategy)
    return function


def watched(original: Any, instead: Any) -> Any:
    """Return a function that calls ``instead``, and the original one while it is traced."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return instead(*args, **kwargs)

    not_compiled(instead)
    return not_compiled(called)


not_compiled(quietly)


class Patches:
    """What was put in the place of torch's own functions, and how to take it away again."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute of a class or a module."""
        # A method that is written in C++ loses its class if it is read through it.
        own = vars(owner).get(name)
        setattr(owner, name, replacement)
        if own is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))

    def then(self, undo: Callable[[], None]) -> None:
        """Have something else undone, too."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Leave torch as it was."""
        while self._undo:
            self._undo.pop()()


def install(watch: Any) -> Patches:
    """Have the watch told from now on."""
    hooks = Patches()

    def optimizer_called(optimizer: Any, *_: Any) -> None:
        if torch.compiler.is_compiling():
            SEEN.optimizer = optimizer
        else:
            quietly(watch, watch.optimizer_called, optimizer)

    handle = register_optimizer_step_post_hook(not_compiled(optimizer_called))
    hooks.then(handle.remove)
    _watch_backward(watch, hooks)
    _watch_graphs(watch, hooks)
    _watch_loaders(watch, hooks)
    _watch_scaler(watch, hooks)
    _watch_modes(watch, hooks)
    _watch_files(watch, hooks)
    _watch_warnings(watch, hooks)
    _refuse_spawn(hooks)
    watch.made.watch(hooks.put)
    watch.traffic.install(hooks.put)
    watch.inputs.begin()
    hooks.then(watch.inputs.end)
    return hooks


def _watch_backward(watch: Any, hooks: Patches) -> None:
    """Every backward pass goes through one function of torch's.

    One inside another belongs to it: reentrant activation checkpointing.
    """
    autograd: Any = torch.autograd
    names = [name for name in ("_engine_run_backward",) if hasattr(autograd, name)]
    for name in names or ["backward", "grad"]:
        original = getattr(autograd, name)
        hooks.put(autograd, name, watched(original, _with_call_before(original, watch)))


def _with_call_before(function: Any, watch: Any) -> Any:
    running = False

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running:
            return function(*args, **kwargs)
        quietly(watch, watch.backward, args[0] if args else None)
        running = True
        try:
            answer = function(*args, **kwargs)
        finally:
            running = False
        if watch.checks.wants_gradients:
            quietly(watch, watch.checks.gradients)
        return answer

    return wrapper


def _watch_graphs(watch: Any, hooks: Patches) -> None:
    """A CUDA graph makes again what was captured in it, each time it is played.

    That is a backward pass, or a step where an optimizer was captured. The graphs of
    ``make_graphed_callables`` are played inside of a backward pass, and belong to it.
    """
    graph: Any = torch.cuda.CUDAGraph
    capture_end, replay = graph.capture_end, graph.replay

    def captured(self: Any) -> Any:
        self._scalebench = SEEN.captured, SEEN.captured_pass
        SEEN.captured, SEEN.captured_pass = None, False
        return capture_end(self)

    def played(self: Any) -> Any:
        optimizer, has_pass = getattr(self, "_scalebench", (None, False))
        if optimizer is not None or (has_pass and _current_backward() < 0):
            quietly(watch, watch.backward)
        answer = replay(self)
        if optimizer is not None:
            quietly(watch, watch.optimizer_called, optimizer)
        return answer

    hooks.put(graph, "capture_end", watched(capture_end, captured))
    hooks.put(graph, "replay", watched(replay, played))


_current_backward: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def _watch_loaders(watch: Any, hooks: Patches) -> None:
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    def next_batch(self: Any) -> Any:
        watch.begin()
        watch.between.batch_asked(torch.is_grad_enabled())
        watch.batches.evaluating = watch.between.is_evaluating()
        return watch.batches.next_of(self, original)

    def watched_next(self: Any) -> Any:
        return quietly(watch, next_batch, self)

    hooks.put(iterator, "__next__", watched(original, watched_next))
    ask = iterator._next_index

    def asking(self: Any) -> Any:
        index = ask(self)
        quietly(watch, watch.batches.asked_for, self, index)
        return index

    hooks.put(iterator, "_next_index", watched(ask, asking))


def _watch_scaler(watch: Any, hooks: Patches) -> None:
    """A GradScaler that finds infinities leaves the optimizer out: it is a step all the same."""
    scaler: Any = torch.amp.GradScaler
    original = scaler.step

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, optimizer, *args, **kwargs)
        quietly(watch, watch.optimizer_called, optimizer)
        return answer

    hooks.put(scaler, "step", watched(original, step))


def _watch_modes(watch: Any, hooks: Patches) -> None:
    """``eval()`` and ``train()`` of a module: both go through ``train``."""
    module: Any = torch.nn.Module
    original = module.train

    def train(self: Any, mode: bool = True) -> Any:
        quietly(watch, watch.between.mode_changed, bool(mode))
        return original(self, mode)

    hooks.put(module, "train", watched(original, train))


SAVERS = (
    ("safetensors.torch", "", "save_file"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
)
"""Module, class, and function that save in another way than by torch's functions, or more."""


def _watch_files(watch: Any, hooks: Patches) -> None:
    """Checkpoints: how long they are saved, and which are loaded."""

    def save_quietly(save: Any) -> Any:
        timed = watch.between.saving(save)
        return lambda *args, **kwargs: quietly(watch, timed, *args, **kwargs)

    def note_and_load(load: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            watch.loads(*args, **kwargs)
            return load(*args, **kwargs)

        return noted

    def put(owner: Any, names: Sequence[str], around: Any) -> None:
        for name in names:
            original = getattr(owner, name, None)
            if original is not None:
                hooks.put(owner, name, watched(original, around(original)))

    def watch_checkpoints() -> None:
        checkpoint = sys.modules["torch.distributed.checkpoint"]
        put(checkpoint, ("save", "async_save"), save_quietly)
        put(checkpoint, ("load",), note_and_load)

    def watch_saver(name: str, kind: str, save: str) -> None:
        module = sys.modules[name]
        put(getattr(module, kind) if kind else module, (save,), save_quietly)

    put(torch, ("save",), save_quietly)
    put(torch, ("load",), note_and_load)
    after_import_of("torch.distributed.checkpoint", watch_checkpoints)
    for saver in SAVERS:
        after_import_of(saver[0], functools.partial(watch_saver, *saver))


def _watch_warnings(watch: Any, hooks: Patches) -> None:
    show = warnings.showwarning

    def shown(message: Any, *args: Any, **kwargs: Any) -> None:
        watch.checks.warned(message)
        show(message, *args, **kwargs)

    hooks.put(warnings, "showwarning", shown)


def _refuse_spawn(hooks: Patches) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ScriptProblem(SPAWNS)

    for name in ("spawn", "start_processes"):
        hooks.put(torch.multiprocessing, name, refuse)
