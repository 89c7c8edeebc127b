"""Runs the user's script as its interpreter would, and leaves a record of what became of it."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from scalebench.worker.attach import interface
from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.nested import refuse_launchers
from scalebench.worker.attach.problems import (
    IF_IT_TRAINED,
    NO_OPTIMIZER,
    ONLY_OTHERS,
    OWN_PROCESSES,
    NoStep,
    ScriptProblem,
    check_torch,
)

RECORD = "attach{rank}.json"


def main(request_file: str) -> int:
    """Run the script that a request names; return the process's exit code.

    Args:
        request_file: JSON; see `scalebench.worker.script.supervise.request_for`.
    """
    request: dict[str, Any] = json.loads(Path(request_file).read_text(encoding="utf-8"))
    record = Path(request["folder"]) / RECORD.format(rank=request["rank"])
    own_pid = os.getpid()
    _answer_signals()

    def keep(seen: dict[str, Any]) -> None:
        if os.getpid() != own_pid:  # a process that the script has forked
            return
        whole = record.with_suffix(".part")
        whole.write_text(json.dumps(seen), encoding="utf-8")
        os.replace(whole, record)

    def begin() -> None:
        check_torch(str(sys.modules["torch"].__version__))
        from scalebench.worker.attach import hooks
        from scalebench.worker.attach.timing.agreement import store_at
        from scalebench.worker.attach.watch import Watch

        address, limit_s = request["store"], request["limit_s"]
        connect = None if address is None else functools.partial(store_at, address, limit_s)
        interface.watch = Watch(request, keep, connect)
        installed = hooks.install(interface.watch)
        os.register_at_fork(after_in_child=installed.remove)
        _heed_other_port()

    exit_at_once = os._exit

    def exit_with_record(code: int) -> None:
        if os.getpid() == own_pid and not (code or getattr(interface.watch, "over", True)):
            _store_end(None, keep)
        exit_at_once(code)

    os._exit = exit_with_record  # type: ignore[assignment]
    after_import_of("torch", begin)
    refuse_launchers()
    error: BaseException | None = None
    try:
        run(request)
    except BaseException as raised:
        error = raised
    code = _conclude(error, keep)
    sys.stdout.flush()
    sys.stderr.flush()
    if interface.watch is not None and interface.watch.agreement.is_stuck:
        _end_at_once(code)
    return code


def _end_at_once(code: int) -> None:
    """End the process as the interpreter would, but for a thread that cannot be stopped."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(request: dict[str, Any]) -> None:
    """Run a script or a module as ``python`` does."""
    sys.argv = [request["program"], *request["arguments"]]
    if request["module"]:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(request["program"])))
    runpy.run_path(request["program"], run_name="__main__")


def _heed_other_port() -> None:
    """Have rank 0 of a script that chooses another port serve it, as without a launcher.

    The port that it was given is served by the supervising process.
    """
    import torch.distributed as dist

    original: Any = getattr(dist, "init_process_group", None)
    served = os.environ.get("MASTER_PORT")
    if original is None:
        return

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        at = urlsplit(str(kwargs.get("init_method") or (*args, "", "")[1]))
        port = str(at.port) if at.scheme == "tcp" else os.environ.get("MASTER_PORT")
        if port != served:
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        return original(*args, **kwargs)

    dist.init_process_group = init


def _conclude(error: BaseException | None, keep: Callable[[dict[str, Any]], None]) -> int:
    """Store what there is to say at the script's end; return the exit code."""
    try:
        code = _store_end(error, keep)
        if not code:
            _leave_group()
        return code
    finally:
        if interface.watch is not None:
            interface.watch.agreement.close()


def _store_end(error: BaseException | None, keep: Callable[[dict[str, Any]], None]) -> int:
    watch = interface.watch
    error = _caught_up(watch) or error
    ended = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
    if not ended and watch is not None and not watch.over and watch.is_left_alone():
        watch.store()
    if watch is not None and watch.over:  # it was measured: what came later changes nothing
        if not ended and error is not None:
            print(_own_traceback(error), file=sys.stderr)
        return 0
    if not ended and watch is not None and not watch.num_calls and watch.agreement.others_end():
        error = ScriptProblem(ONLY_OTHERS)
    if not ended and error is not None:
        text = _own_traceback(error)
        print(text, file=sys.stderr)
        keep({"error": describe(error, text)})
        return 1
    if watch is None or watch.num_calls == 0:
        keep({"error": describe(_why_no_step(watch), None)})
        return 1
    try:
        watch.check_group()
        watch.store()
    except ScriptProblem as problem:
        keep({"error": describe(problem, None)})
        return 1
    return 0


def _caught_up(watch: Any) -> BaseException | None:
    """Count the last step, if compiled code has made it; return what the watch says to it."""
    try:
        if watch is not None:
            from scalebench.worker.attach.hooks import catch_up

            catch_up(watch)
    except (SystemExit, ScriptProblem) as said:
        return said
    return None


def _why_no_step(watch: Any) -> ScriptProblem:
    if watch is not None and watch.num_backwards:
        return ScriptProblem(NO_OPTIMIZER.format(passes=watch.num_backwards))
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and next(processes._process_counter) > 1:
        return NoStep(OWN_PROCESSES)
    return NoStep(IF_IT_TRAINED)


def describe(error: BaseException, text: str | None) -> dict[str, Any]:
    """Return what is stored of an error; the supervising process sorts it by its kind."""
    return {
        "loaded": getattr(interface.watch, "loaded", []),
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
