"""Functions of the watch in the place of torch's own, and inside of what is compiled.

What ``torch.compile`` and CUDA graphs have taken over must not trace the watch: its clock and lists
would break the graph, have it compiled again at every step, or fail. Inside of a traced function a
call leaves a word in `SEEN` instead. Dynamo stores it each time after its graph has run, without a
graph break: a store that nothing reads there needs no guard. The watch reads it at the next thing
that it is told of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

_dynamo: Any = torch._C._dynamo.eval_frame


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
