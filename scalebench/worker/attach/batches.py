"""What the training is fed: by the script's DataLoaders, and what its modules are given.

Iterators are watched where every one of torch's passes: ``_BaseDataLoaderIter.__next__``. One
whose batch was the last before a backward pass feeds the training, and so do those that were read
next to it (labelled and unlabelled data); the others evaluate. Prefetchers may read without
gradients, as evaluations do: such a batch has to be the last before two backward passes in a row,
of one dataset, because a queue may hand on what was read before an evaluation.

How many samples a batch has, its loader knows: as many as its sampler asked the dataset for, unless
fewer came. A dataset that makes whole batches by itself leaves it to the tensors, which have to
agree. The shape of a tensor alone does not tell: it may begin with time, with the nodes of graphs,
with channels.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import record_function

from scalebench.worker.attach.checks.data import Fed, Prints, print_of, rows_of, tensors_of
from scalebench.worker.attach.hooks import Patches

DATA = "scalebench.data"
"""`scalebench.trace.operations.communication_kernels.DATA`."""

DEEPEST = 4

PRINTED_CALLS = 2
"""Of an optimizer, the first: what is the same before both may be one batch, as benchmarks have."""


class FeedCounts(NamedTuple):
    """What the training was fed between two steps.

    Attributes:
        began: Mark of the moment at which the first batch was asked for; None: none was.
        samples: In all microbatches; None: one of them does not tell.
        tokens: Likewise; 0: the batches hold no tokens.
        waited_s: In the loader's ``__next__``, on the host.
        others: Batches that were not trained on: of an evaluation.
        most: Microbatches of the loader that handed over the most.
    """

    began: Any
    samples: int | None
    tokens: int
    waited_s: float
    batches: int
    others: int = 0
    most: int = 0


class _Feed:
    """One iterator since the last step.

    Args:
        iterator: Weakly, so that one that its loop has left is gone.

    Attributes:
        asked: Samples of each batch that its sampler has asked for and that has not come yet.
        drawn: Batches since the last backward pass.
        learns: Whether the last one was read with gradients on.
        evaluates: Whether it was read with a model in evaluation, as is not the rule.
        prints: Of the last one and of its samples; None: used, or not wanted.
        begins: What chooses the samples of an epoch that nothing was trained on so far.
        time_first: Whether its tensors begin with time: their rows are no samples.
        guessed: Samples of the last one, of which its loader is not sure: it asked for none, or for
            one, which may be a whole batch.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = weakref.ref(iterator)
        self.dataset = id(getattr(iterator, "_dataset", iterator))
        self.settings: dict[str, Any] | None = None
        self.trains = False
        self.asked: deque[int | None] = deque()
        self.sampler: Any = None
        self.drawn = 0
        self.learns, self.evaluates = True, False
        self.prints: Prints | None = None
        self.begins: Any = None
        self.guessed = 0
        self.time_first = self._fits = False
        self.rows: Counter[tuple[int, ...]] = Counter()
        self.clear()

    def clear(self) -> None:
        self.began: Any = None
        self.samples: int | None = 0
        self.tokens = self.waited_ns = self.batches = 0

    def next_asked(self) -> int | None:
        """Return the samples that were asked for in the batch that has come; None: not told."""
        return self.asked.popleft() if self.asked else None

    def samples_of(self, batch: Any) -> int | None:
        """Return the samples of a batch; None: neither its loader nor its tensors tell.

        A stream may end, or what collates may drop samples, before a batch is full: its tensors say
        so, unless they begin with time, or stand in a list of samples. One sample that was asked
        for may be a whole batch.
        """
        asked, leading = self.next_asked(), leading_of(batch)
        self.guessed = asked or leading or 0 if asked in (None, 1) else 0
        if asked is None:
            return leading
        if leading is None or leading == asked:
            self._fits |= leading is not None
            return asked
        is_list = isinstance(batch, (list, tuple))
        self.time_first |= any(row[0] == asked for row in rows_of(batch))
        is_one_row = leading == 1 and not self._fits  # samples one after the other, not padded,
        is_one_row &= all(tensor.dim() > 1 for tensor in tensors_of(batch, DEEPEST))  # no labels
        is_samples = is_list and len(batch) == asked and not self._is_collated(batch)
        if self.time_first or is_one_row or is_samples:
            return asked
        if leading < asked:
            nested = is_list and any(isinstance(part, (list, tuple, Mapping)) for part in batch)
            return None if nested else leading
        return None if asked == 1 else asked

    def _is_collated(self, parts: Any) -> bool:
        """Tell whether tensors in a list are parts of a batch: no samples, which look alike."""
        kinds = {(one.dtype, one.dim()) if isinstance(one, torch.Tensor) else None for one in parts}
        return None not in kinds and (self._fits or len(kinds) > 1)


class Batches:
    """Counts what iterators hand over.

    Attributes:
        tracing: Whether waiting is marked in the profiler's trace.
        off: Whether iterators are left alone, in steps that are to be bare.
        evaluating: Whether a model was set to evaluation since the last step, and not back. What is
            read then, and not before two backward passes in a row, is not trained on.
        loader: The settings of the loader that feeds the training; None: none has yet.
        first_rows: Those of all batches before the end of the first step; see `rows_of`.
        next_to: Datasets read next to others before a backward pass → whether not each time:
            prompts, for rollouts to train on; validation without ``no_grad``.
        is_given: Dataset → whether the model was given all that was read in the first step; no:
            not even a batch of it. Others may have been read ahead.
    """

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.tracing = False
        self.off = self.evaluating = False
        self.loader: dict[str, Any] | None = None
        self.seen = Fed()
        self.first_rows: Counter[tuple[int, ...]] = Counter()
        self.next_to: dict[int, bool] = {}
        self.is_given: dict[int, bool] = {}
        self._guessed = 0
        self._is_first = True
        self._active: list[_Feed] = []
        self._drawn: list[_Feed] = []
        self._fed_without: int | None = None
        self._evaluated: set[int] = set()

    def asked_for(self, iterator: Any, index: Any) -> None:
        """Note what a sampler has asked its dataset for: a list of samples, or what makes one."""
        feed = _feed_of(iterator)
        if feed.sampler is not iterator._sampler_iter:  # a new epoch: nothing is on its way
            feed.sampler = iterator._sampler_iter
            feed.asked.clear()
            feed.begins = iterator._index_sampler
        feed.asked.append(len(index) if hasattr(index, "__len__") else None)

    def next_of(self, iterator: Any, original: Any) -> Any:
        """Do what an iterator's own ``__next__`` does, and note what it hands over."""
        feed = _feed_of(iterator)
        if self.off:
            batch = original(iterator)
            feed.next_asked()
            return batch
        if feed.settings is None:
            feed.settings = settings_of(iterator)
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
        feed.drawn += 1
        feed.learns, feed.evaluates = torch.is_grad_enabled(), self.evaluating
        if feed.learns:
            self._fed_without = None
        try:
            self._look_at(batch, feed)
        except Exception:  # a tensor of another kind, or what is none
            feed.samples = None
        self._drawn = [one for one in self._drawn if one is not feed] + [feed]
        return batch

    def _look_at(self, batch: Any, feed: _Feed) -> None:
        samples = feed.samples_of(batch)
        feed.samples = None if samples is None or feed.samples is None else feed.samples + samples
        feed.tokens += tokens_of(batch)
        feed.prints = self.seen.prints_of(batch, samples)
        if self._is_first:
            feed.rows += rows_of(batch)
            self.first_rows += rows_of(batch)

    def backward(self) -> None:
        """Note that a backward pass has begun: the last batch was one to train on.

        So were those that other loaders handed over since the last backward pass, no more of each.
        """
        learning = [feed for feed in self._drawn if feed.learns]
        last = self._drawn[-1] if self._drawn else None
        if last is not None and not last.learns:
            read_before, self._fed_without = self._fed_without, last.dataset
            if last.dataset != read_before:
                last = learning[-1] if learning else None
        if last is not None:
            last.trains = True
            missed = self.next_to.keys() - {feed.dataset for feed in learning}
            self.next_to.update(dict.fromkeys(missed, True))
            if last.begins is not None:
                self.seen.begins(last.begins)
                last.begins = None
            if last.prints is not None:
                rows = Counter() if last.time_first else last.prints.rows
                self.seen.trained_on(last.prints._replace(rows=rows))
                last.prints = None
            self._guessed += last.guessed
            last.guessed = 0
            self.loader = last.settings
            known = {*self.next_to, *self._evaluated}
            self._evaluated = {feed.dataset for feed in self._drawn if feed.evaluates}
            for feed in learning:
                was_left = feed.iterator() is None and feed.dataset == last.dataset
                evaluates = feed.evaluates and feed.dataset not in known
                is_next_to_it = feed.trains or (feed.drawn <= last.drawn and not evaluates)
                feed.trains = feed is last or (is_next_to_it and not was_left)
                if feed.trains and len(learning) > 1 and feed.dataset not in self.next_to:
                    self.next_to[feed.dataset] = False
                    self._forget_with(feed)
        for feed in self._drawn:
            feed.drawn = 0
        self._drawn.clear()

    def _forget_with(self, feed: _Feed) -> None:
        """Forget a dataset when it is gone: another one may have its number."""

        def forget(number: int = feed.dataset) -> None:
            self.next_to.pop(number, None)
            self.is_given.pop(number, None)

        with suppress(TypeError):  # a list cannot be watched
            weakref.finalize(getattr(feed.iterator(), "_dataset", None), forget).atexit = False

    def trained_as(self, given: Mapping[tuple[int, ...], int], ranks: int = 1) -> dict[str, Any]:
        """Return what the rows that a model was given in the first step say of its batches.

        Returns:
            ``trains_on_part``: the model was given fewer rows than its batches have.
            ``given``: the rows that it was given; null: tensors say different things.
            ``part``: how much it was given, as a part of all, where ranks may have cut the rows
            or their sequence; null: tensors say different things.
            ``words``: how much of each text, as a part of all: the last word may be left out.
            ``samples_doubted``: neither their tensors nor as many rows as guessed samples.
            ``trains_on_all``: all rows of everything that was read.
            ``given_less``: rows of batches, and not all of those that several loaders read.
        """
        read = self.first_rows
        known = [row for row in given if self._rows_like(row)]
        cut = {row: self._rows_like(row) or self._rows_like(row, ranks) * ranks for row in given}
        parts = {given[row] / rows for row, rows in cut.items() if rows}
        fits = len(known) == len(given) > 0
        together = sum((feed.rows for feed in self._active if feed.trains), Counter())
        for feed in self._active if fits else ():
            if feed.dataset not in self.next_to:
                continue
            rows = feed.rows.items()
            if not rows or any(given.get(row, 0) >= together[row] for row in feed.rows):
                self.is_given[feed.dataset] = True
            elif all(given.get(row, 0) * feed.batches < count for row, count in rows):
                self.is_given[feed.dataset] = False
        numbers = {*given.values()}
        lengths = [row[0] * (1 if row in known else ranks) for row in given if len(row) == 1]
        words = {n / (n + 1) if self.seen.rows[(n + 1,)] else 1.0 for n in lengths}
        return {
            "given": numbers.pop() if len(numbers) == 1 else None,
            "part": parts.pop() if len(parts) == 1 else None,
            "words": min(words, default=1.0) if not self.seen.rows.keys() & given else 1.0,
            "trains_on_part": any(given[row] < self._rows_like(row) for row in known),
            "samples_doubted": bool(self._guessed and given and not known)
            and self._guessed not in given.values(),
            "given_less": fits and any(given[row] < together[row] for row in given),
            "trains_on_all": bool(given.keys() & read)
            and all(given[row] >= read[row] for row in given.keys() & read),
        }

    def _rows_like(self, row: tuple[int, ...], pieces: int = 1) -> int:
        """Return how many rows the batches have, of which one is a piece; 0: none.

        Of a text the last word may be left out, which only is what follows the others.
        """
        lengths = (row[0] * pieces, row[0] * pieces + 1)
        return next((n for one in lengths if (n := self.seen.rows[(one, *row[1:])])), 0)

    def take(self) -> FeedCounts:
        """Return what came since the last call for training, and begin again."""
        self._is_first = False
        self.seen.stepped()
        fed = [feed for feed in self._active if feed.trains and feed.batches]
        now_and_then = {id(feed) for feed in fed if self.next_to.get(feed.dataset)}
        feeds = [
            feed
            for feed in fed
            if id(feed) not in now_and_then or self.is_given.get(feed.dataset, True)
        ]
        unknown = [id(f) in now_and_then and f.dataset not in self.is_given for f in feeds]
        samples = [None if unknown[i] else feed.samples for i, feed in enumerate(feeds)]
        found = FeedCounts(
            fed[0].began if fed else None,
            None if None in samples else sum(s for s in samples if s),
            sum(feed.tokens for feed in feeds),
            sum(feed.waited_ns for feed in fed) / 1e9,
            sum(feed.batches for feed in feeds),
            sum(feed.batches for feed in self._active if not feed.trains),
            max((feed.batches for feed in feeds), default=0),
        )
        for feed in self._active:
            feed.clear()
        self._active.clear()
        return found


def settings_of(iterator: Any) -> dict[str, Any]:
    """Return how a loader's iterator makes its batches."""
    workers = getattr(iterator, "_num_workers", None)
    return {
        "num_workers": workers,
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None) if workers else None,
        "pin_memory": getattr(iterator, "_pin_memory", None),
    }


def _feed_of(iterator: Any) -> _Feed:
    found: _Feed | None = iterator.__dict__.get("_scalebench")
    if found is None:
        found = _Feed(iterator)
        iterator.__dict__["_scalebench"] = found
    return found


def leading_of(batch: Any) -> int | None:
    """Return the length that all parts of a batch have in common; None: they differ.

    Parts are tensors, by their first dimension, and lists; numbers and texts have no say.
    """
    lengths = set(_lengths(batch, DEEPEST))
    return lengths.pop() if len(lengths) == 1 else None


def _lengths(batch: Any, depth: int) -> Iterator[int]:
    if isinstance(batch, torch.Tensor):
        yield from (batch.size(0),) if batch.dim() else ()
    elif hasattr(batch, "shape"):
        yield from batch.shape[:1]
    elif depth:
        for part in _parts_of(batch):
            if isinstance(part, (list, tuple)):
                yield len(part)
            else:
                yield from _lengths(part, depth - 1)


def tokens_of(batch: Any) -> int:
    """Return the tokens of a batch: ``input_ids``, or whole numbers in two dimensions; 0: none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    tensor = ids if isinstance(ids, torch.Tensor) else _first_tensor(batch, DEEPEST)
    if tensor is None or tensor.dim() != 2 or tensor.is_floating_point() or tensor.is_complex():
        return 0
    return int(tensor.numel())


def _first_tensor(batch: Any, depth: int) -> Any:
    """Return the first tensor with a dimension in nested containers, or None."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() else None
    for part in _parts_of(batch) if depth else ():
        found = _first_tensor(part, depth - 1)
        if found is not None:
            return found
    return None


def _parts_of(batch: Any) -> list[Any]:
    if isinstance(batch, (str, bytes)):
        return []
    if hasattr(batch, "values") and callable(batch.values):
        return list(batch.values())
    if isinstance(batch, (list, tuple)):
        return list(batch)
    return list(getattr(batch, "__dict__", {}).values())


class Inputs:
    """Counts the elements of what the outermost modules are given while gradients are on.

    They tell how a rank's work depends on N; without a DataLoader nothing else does. Modules are
    looked at until the first call of an optimizer, and once more until the second: none of this is
    in a clean step. What torch.compile
    makes of a module is looked at from outside: the hook would be compiled. One, not several, which
    may be parts of a model, and no function.

    Attributes:
        elements: So far; None: it is not known.
        rows: Of what was given, by the shape of one row.
        print: A checksum of all that was given on the host; 0: it was not there.
        prints: Of what the first module was given before each call of an optimizer.
    """

    def __init__(self) -> None:
        self.elements: int | None = 0
        self.rows: Counter[tuple[int, ...]] = Counter()
        self.print = 0
        self.prints: list[int] = []
        self._patches = Patches()
        self._inside = self._compiles = False
        self._calls = 0

    def begin(self) -> None:
        """Look from now on."""
        self._look_at(torch.nn.Module)

    def _look_at(self, kind: Any) -> None:
        self._patches.put(kind, "__call__", self._counting(kind.__call__))
        self._patches.put(torch, "compile", self._compiling(torch.compile))

    def _counting(self, original: Any) -> Any:
        @functools.wraps(original)
        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self.elements is None or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                self._look_into([args, kwargs])
                return original(module, *args, **kwargs)
            finally:
                self._inside = False

        return watched

    def _look_into(self, given: Any) -> None:
        try:
            found = print_of(given)
            if len(self.prints) == self._calls:
                self.prints.append(found)
            if self._calls:
                return
            self.elements = (self.elements or 0) + _elements(given, DEEPEST)
            self.rows += rows_of(given)
            self.print ^= found
        except Exception:  # a tensor of another kind, or what is none
            self._forget()

    def _forget(self, elements: int | None = None) -> None:
        self.elements = elements
        self.rows.clear()
        self.print = 0
        self.prints.clear()

    def _compiling(self, original: Any) -> Any:
        @functools.wraps(original)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            if self._patches and (args or "model" in kwargs):  # it calls itself without them
                self.end()
                is_first, self._compiles = not self._compiles, True
                is_whole = is_first and isinstance(compiled, torch.nn.Module)
                self._forget(0 if is_whole else None)
                if is_whole:
                    self._look_at(type(compiled))
            return compiled

        return compiling

    def stepped(self) -> None:
        """Note a call of an optimizer."""
        self._calls += 1
        if self._calls == PRINTED_CALLS:
            self.end()

    def end(self) -> None:
        """Leave torch as it was."""
        self._patches.remove()


def _elements(value: Any, depth: int) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel()
    if not depth or not isinstance(value, (list, tuple, dict)):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return sum(_elements(part, depth - 1) for part in parts)
