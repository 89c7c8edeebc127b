"""Runs the user's script as its interpreter would, and leaves a record of what became of it."""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from scalebench.worker.attach import interface
from scalebench.worker.attach.problems import NO_STEP, ScriptProblem, check_torch

RECORD = "attach{rank}.json"


def main(request_file: str) -> int:
    """Run the script that a request names; return the process's exit code.

    Args:
        request_file: JSON; see `scalebench.worker.script.supervise.request_for`.
    """
    request: dict[str, Any] = json.loads(Path(request_file).read_text(encoding="utf-8"))
    record = Path(request["folder"]) / RECORD.format(rank=request["rank"])
    _answer_signals()

    def keep(seen: dict[str, Any]) -> None:
        whole = record.with_suffix(".part")
        whole.write_text(json.dumps(seen), encoding="utf-8")
        os.replace(whole, record)

    def begin() -> None:
        check_torch(str(sys.modules["torch"].__version__))
        from scalebench.worker.attach import hooks
        from scalebench.worker.attach.watch import Watch

        interface.watch = Watch(request, keep)
        hooks.install(interface.watch)

    after_import_of("torch", begin)
    error: BaseException | None = None
    try:
        run(request)
    except BaseException as raised:
        error = raised
    code = _conclude(error, keep)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run(request: dict[str, Any]) -> None:
    """Run a script or a module as ``python`` does."""
    sys.argv = [request["program"], *request["arguments"]]
    if request["module"]:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(request["program"])))
    runpy.run_path(request["program"], run_name="__main__")


def _conclude(error: BaseException | None, keep: Callable[[dict[str, Any]], None]) -> int:
    """Store what there is to say at the script's end; return the exit code."""
    watch = interface.watch
    ended = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
    if watch is not None and watch.over:  # it was measured: what came later changes nothing
        if not ended and error is not None:
            print(_own_traceback(error), file=sys.stderr)
        _leave_group()
        return 0
    if not ended and error is not None:
        text = _own_traceback(error)
        print(text, file=sys.stderr)
        keep({"error": describe(error, text)})
        return 1
    if watch is None or watch.num_calls == 0:
        keep({"error": describe(ScriptProblem(NO_STEP), None)})
        return 1
    try:
        watch.check_group()
        watch.store()
    except ScriptProblem as problem:
        keep({"error": describe(problem, None)})
        return 1
    _leave_group()
    return 0


def describe(error: BaseException, text: str | None) -> dict[str, Any]:
    """Return what is stored of an error; the supervising process sorts it by its kind."""
    return {
        "types": [kind.__name__ for kind in type(error).__mro__],
        "code": error.code if isinstance(error, SystemExit) else None,
        "message": str(error).strip(),
        "traceback": text,
        "time_ns": time.monotonic_ns(),
    }


def _own_traceback(error: BaseException) -> str:
    """Return what the interpreter would print: the traceback without the frames around it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, str) else ""
    around = (__file__, runpy.__file__, "<frozen runpy>")
    rest: TracebackType | None = error.__traceback__
    while rest is not None and rest.tb_frame.f_code.co_filename in around:
        rest = rest.tb_next
    return "".join(traceback.format_exception(type(error), error, rest))


def _leave_group() -> None:
    """Destroy the script's process group, if it has left it behind."""
    distributed: Any = sys.modules.get("torch.distributed")
    with suppress(Exception):
        if distributed is not None and distributed.is_initialized():
            distributed.destroy_process_group()


def _answer_signals() -> None:
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.enable()
    with suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def after_import_of(name: str, call: Callable[[], None]) -> None:
    """Call something as soon as a module has been imported: the script imports it when it likes."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


class _AfterImport(MetaPathFinder):
    """Finds one module as it is found without it, and has it loaded with a call at the end."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self.call = call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self.call)
        return spec


class _CallingLoader(Loader):
    """Another loader, and a call when it is done."""

    def __init__(self, inner: Any, call: Callable[[], None]) -> None:
        self.inner = inner
        self.call = call

    def create_module(self, spec: Any) -> Any:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        self.call()
