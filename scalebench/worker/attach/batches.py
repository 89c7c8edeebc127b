"""What the script's DataLoaders hand over: samples, and how long the script waited for them.

Iterators are watched where every one of torch's passes: ``_BaseDataLoaderIter.__next__``. One
whose batch was the last before a backward pass feeds the training; the others evaluate. Prefetchers
may read without gradients, as evaluations do: such a batch has to be the last before two backward
passes in a row, of one dataset: a queue may hand on what was read before an evaluation.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import record_function

DATA = "scalebench.data"
"""`scalebench.trace.marks.DATA`."""

DEEPEST = 4


class Fed(NamedTuple):
    """What the training was fed between two steps.

    Attributes:
        began: Mark of the moment at which the first batch was asked for; None: none was.
        samples: In all microbatches; 0: not known.
        tokens: Likewise; 0: the batches hold no tokens.
        waited_s: In the loader's ``__next__``, on the host.
        batches: Microbatches.
        others: Batches that were not trained on: of an evaluation.
    """

    began: Any
    samples: int
    tokens: int
    waited_s: float
    batches: int
    others: int = 0


class _Feed:
    """One iterator since the last step."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.settings = settings
        self.trains = False
        self.clear()

    def clear(self) -> None:
        self.began: Any = None
        self.samples = self.tokens = self.waited_ns = self.batches = 0


class Batches:
    """Counts what iterators hand over.

    Attributes:
        clock: Of the steps.
        tracing: Whether waiting is marked in the profiler's trace.
        off: Whether iterators are left alone, in steps that are to be bare.
        loader: The settings of the loader that feeds the training; None: none has yet.
    """

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.tracing = False
        self.off = False
        self.loader: dict[str, Any] | None = None
        self._active: list[_Feed] = []
        self._last: _Feed | None = None
        self._without: tuple[_Feed, int] | None = None
        self._fed_without: int | None = None

    def next_of(self, iterator: Any, original: Any) -> Any:
        """Do what an iterator's own ``__next__`` does, and note what it hands over."""
        if self.off:
            return original(iterator)
        feed = iterator.__dict__.get("_scalebench")
        if feed is None:
            feed = iterator.__dict__["_scalebench"] = _Feed(settings_of(iterator))
        if feed.began is None:
            feed.began = self.clock.now()
            self._active.append(feed)
        before = time.monotonic_ns()
        if self.tracing:
            with record_function(DATA):
                batch = original(iterator)
        else:
            batch = original(iterator)  # at the end of an epoch this raises, and nothing is noted
        feed.waited_ns += time.monotonic_ns() - before
        feed.batches += 1
        samples, tokens = size_of(batch)
        feed.samples += samples
        feed.tokens += tokens
        if torch.is_grad_enabled():
            self._last, self._without, self._fed_without = feed, None, None
        else:
            self._without = feed, id(getattr(iterator, "_dataset", iterator))
        return batch

    def backward(self) -> None:
        """Note that a backward pass has begun: the last batch was one to train on."""
        last = self._last
        if self._without is not None:
            feed, dataset = self._without
            last = feed if dataset == self._fed_without else None
            self._without, self._fed_without = None, dataset
        if last is not None and not last.trains:
            last.trains = True
            self.loader = last.settings

    def take(self) -> Fed:
        """Return what came since the last call for training, and begin again."""
        feeds = [feed for feed in self._active if feed.trains and feed.batches]
        fed = Fed(
            feeds[0].began if feeds else None,
            sum(feed.samples for feed in feeds),
            sum(feed.tokens for feed in feeds),
            sum(feed.waited_ns for feed in feeds) / 1e9,
            sum(feed.batches for feed in feeds),
            sum(feed.batches for feed in self._active if not feed.trains),
        )
        for feed in self._active:
            feed.clear()
        self._active.clear()
        return fed


def settings_of(iterator: Any) -> dict[str, Any]:
    """Return how a loader's iterator makes its batches."""
    workers = getattr(iterator, "_num_workers", None)
    return {
        "num_workers": workers,
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None) if workers else None,
        "pin_memory": getattr(iterator, "_pin_memory", None),
    }


def size_of(batch: Any) -> tuple[int, int]:
    """Return samples and tokens of a batch: of its first tensor; 0 where it does not say.

    The leading dimension is the samples. Whole numbers in two dimensions are tokens.
    """
    tensor = _first_tensor(batch, DEEPEST)
    if tensor is None:
        return 0, 0
    is_tokens = tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex()
    return int(tensor.shape[0]), int(tensor.numel()) if is_tokens else 0


def _first_tensor(batch: Any, depth: int) -> Any:
    """Return the first tensor with a dimension in nested containers, or None."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() else None
    if depth == 0 or isinstance(batch, (str, bytes)):
        return None
    if hasattr(batch, "values") and callable(batch.values):
        parts = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = list(batch)
    else:
        parts = list(getattr(batch, "__dict__", {}).values())
    for part in parts:
        found = _first_tensor(part, depth - 1)
        if found is not None:
            return found
    return None
