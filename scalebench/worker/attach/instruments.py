"""What is switched on while steps are traced: torch's profiler, and a look at two kinds of waste.

That is where the host waits for the device, and what DDP's search for unused parameters costs.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel

from scalebench.worker.attach.hooks import Patches
from scalebench.worker.portable import step_profiler

STEP = "scalebench.step"
"""`STEP` of `scalebench.trace`. Here it is a point between two steps, not a span."""


class Traces:
    """The traced blocks of a rank.

    Attributes:
        blocks: For each, the number of its first step, ``before_ns`` and ``step_ns`` (the machine's
            monotonic clock before and inside each mark), and later its ``file``.
        failure: Why there are none; None: nothing went wrong.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.blocks: list[dict[str, Any]] = []
        self.failure: str | None = None
        self._profilers: list[Any] = []
        self._running = False

    def begin(self, first: int) -> None:
        """Switch the profiler on before a step."""
        if self.failure is not None:
            return
        profiler = step_profiler(self.device)
        try:
            profiler.start()
        except Exception as error:  # the script may be profiling itself
            self.failure = f"torch's profiler did not start: {error}"
            return
        self._running = True
        self._profilers.append(profiler)
        self.blocks.append({"first": first, "before_ns": [], "step_ns": []})
        self.mark()

    def mark(self) -> None:
        """Mark the end of a step and the beginning of the next."""
        if self._running:
            self.blocks[-1]["before_ns"].append(time.monotonic_ns())
            with record_function(STEP):
                self.blocks[-1]["step_ns"].append(time.monotonic_ns())

    def end(self) -> None:
        """Switch the profiler off."""
        if not self._running:
            return
        self._running = False
        try:
            self._profilers[-1].stop()
        except Exception as error:
            self.failure = f"torch's profiler did not stop: {error}"

    def store(self, folder: Path, rank: int) -> None:
        """Write every block's trace to a file."""
        self.end()
        for number, profiler in enumerate(self._profilers):
            if self.failure is not None:
                return
            file = folder / f"trace{rank}.{number}.json"
            try:
                profiler.export_chrome_trace(str(file))
            except Exception as error:
                self.failure = f"torch's profiler could not store its trace: {error}"
                return
            self.blocks[number]["file"] = str(file)
        self._profilers.clear()


ON_TENSORS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
CUDA_FUNCTIONS = ("synchronize",)
CUDA_CLASSES = ("Stream", "Event")

SHOWN = {"__bool__": "bool(tensor)", "__float__": "float(tensor)", "__int__": "int(tensor)"}

_TORCH = os.path.dirname(torch.__file__) + os.sep
_INSTALLED = tuple(
    {
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for path in (sysconfig.get_path(name),)
        if path
    }
)
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep

MOST_PLACES = 8

COMPILED = "the script uses torch.compile, and the hooks would have it compile again"


class HostWaits:
    """Counts calls that wait for the device, and notes where each stands in the user's code.

    ``.item()``, ``.cpu()``, ``synchronize()``: each costs the host the time until the device has
    done everything that was queued before; on CPU there is nothing to wait for. What the host
    reads of its own tensors is counted only there, where a GPU may hold them later.

    Attributes:
        places: ``file:line, call`` → how often; in the order in which they were first seen.
        unavailable: Why nothing is looked for; None: something is.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.num_calls = 0
        self.seconds = 0.0
        self.places: dict[tuple[str, int, str], int] = {}
        self.unavailable: str | None = None
        self._patches = Patches()

    def begin(self) -> None:
        """Look from now on."""
        if self._patches:
            return
        if _compiles():
            self.unavailable = COMPILED
            return
        for name in ON_TENSORS:
            self._replace(torch.Tensor, name, SHOWN.get(name, f".{name}()"))
        cuda: Any = torch.cuda
        for name in CUDA_FUNCTIONS:
            self._replace(cuda, name, f"torch.cuda.{name}()")
        for kind in CUDA_CLASSES:
            self._replace(getattr(cuda, kind), "synchronize", f"torch.cuda.{kind}.synchronize()")

    def end(self) -> None:
        """Look no longer: everything is as before."""
        self._patches.remove()

    def _replace(self, owner: Any, name: str, shown: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            noted = self._note(args[0] if args else None, shown, sys._getframe(1))
            before = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - before if noted else 0.0

        self._patches.put(owner, name, watched)

    def _note(self, tensor: Any, shown: str, frame: Any) -> bool:
        is_on_host = isinstance(tensor, torch.Tensor) and not tensor.is_cuda
        if is_on_host and (self.device == "cuda" or _is_torchs(frame) or _reads_a_dataset(frame)):
            return False  # a number that is kept on the host, also where there is a GPU
        place = place_of(frame)
        if place is None:
            return False
        self.num_calls += 1
        key = (*place, shown)
        self.places[key] = self.places.get(key, 0) + 1
        return True

    def found(self, num_steps: int) -> dict[str, Any] | None:
        """Return what was found in so many steps; None: nothing was looked for."""
        if self.unavailable is not None or not num_steps:
            return None
        return {
            "steps": num_steps,
            "calls": self.num_calls,
            "seconds": self.seconds,
            "places": [
                {"file": _shown_path(file), "line": line, "call": call, "calls": count}
                for (file, line, call), count in self.places.items()
            ][:MOST_PLACES],
        }


def _reads_a_dataset(frame: Any) -> bool:
    while frame is not None and frame.f_code.co_filename != torch.utils.data._utils.fetch.__file__:
        frame = frame.f_back
    return frame is not None


def place_of(frame: Any) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the user's own code.

    Without one, of the innermost that is not torch's: a framework's. None: all are torch's, or
    scalebench's own.
    """
    fallback: tuple[str, int] | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            return fallback
        if not _is_torchs(frame) and not file.startswith("<"):
            if not os.path.realpath(file).startswith(_INSTALLED):
                return file, int(frame.f_lineno)
            if fallback is None:
                fallback = file, int(frame.f_lineno)
        frame = frame.f_back
    return fallback


def _is_torchs(frame: Any) -> bool:
    return bool(frame.f_code.co_filename.startswith(_TORCH))


def _shown_path(file: str) -> str:
    """Return a path below the working directory, or the last two parts of another."""
    path = os.path.relpath(os.path.abspath(file))
    return os.path.join(*path.split(os.sep)[-2:]) if path.startswith("..") else path


def _compiles() -> bool:
    """Tell whether torch.compile has compiled something in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and utils.counters.get("frames"))


METHOD = "_post_forward"


class UnusedSearch:
    """Times DDP's searches for unused parameters.

    With ``find_unused_parameters`` DDP walks through the autograd graph after every forward pass:
    at the end of its ``forward``, in one method.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_searches = 0
        self._patches = Patches()

    def begin(self) -> None:
        """Time them from now on, where this version of torch has the method."""
        original = vars(DistributedDataParallel).get(METHOD)
        if original is None or self._patches:
            return

        @functools.wraps(original)
        def timed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not searches(module):
                return original(module, *args, **kwargs)
            before = time.perf_counter()
            answer = original(module, *args, **kwargs)
            self.seconds += time.perf_counter() - before
            self.num_searches += 1
            return answer

        self._patches.put(DistributedDataParallel, METHOD, timed)

    def end(self) -> None:
        """Leave DDP as it was."""
        self._patches.remove()

    def found(self, num_steps: int) -> float | None:
        """Return the seconds that a step spends on it; None: there was no search to time."""
        return self.seconds / num_steps if self.num_searches and num_steps else None


def searches(module: Any) -> bool:
    """Tell whether a DDP module looks for unused parameters in every step."""
    asked = getattr(module, "find_unused_parameters", False)
    return bool(asked) and not getattr(module, "static_graph", False)
