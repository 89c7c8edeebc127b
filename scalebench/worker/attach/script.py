"""Runs the user's script as its interpreter would, unless it launches ranks of its own."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import json
import os
import re
import runpy
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path, PurePath
from types import CodeType, FunctionType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from scalebench.worker import attach
from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.traffic import (
    IF_IT_TRAINED,
    NO_OPTIMIZER,
    ONLY_OTHERS,
    OWN_PROCESSES,
    SPAWNS,
    STARTS_RANKS,
    NoStep,
    ScriptProblem,
    check_torch,
)

PROGRAMS = ("torchrun", "deepspeed", "horovodrun", "accelerate-launch")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
OF_RANKS = {"init_process_group", "init_rpc", "backward"}
"""What a process calls that is a rank: those of Hogwild and of torch's RPC make no group."""

_SETTING = re.compile(r"[A-Za-z_]\w*=")
ELASTIC = "TORCHELASTIC_RUN_ID"
"""Names the job of a rank: the ranks of a torchrun inside the script have another one."""
RECORD = "attach{rank}.json"


def refuse_launchers() -> None:
    """Raise `ScriptProblem` in whatever starts a launcher before the first step; see PEP 578."""

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            _, words, _, env = given
            found = launched(_words(words), env or {})
        elif event in ("os.exec", "os.posix_spawn"):
            _, words, env = given
            found = launched(_words(words), env or {})
        elif event == "os.system":
            found = launched(_words(given[0]), {})
        else:
            return
        if found and not getattr(attach.current, "num_calls", 0):
            launcher, script = found
            raise ScriptProblem(STARTS_RANKS.format(launcher=launcher, script=script))

    sys.addaudithook(hear)
    after_import_of("multiprocessing.process", _refuse_ranks)


def _refuse_ranks() -> None:
    process = sys.modules["multiprocessing.process"].BaseProcess
    start = process.start

    def start_other(self: Any) -> None:
        given = (getattr(self, "_target", None), *getattr(self, "_args", ()), type(self).run)
        if not getattr(attach.current, "num_calls", 0) and any(map(is_rank_of_its_own, given)):
            raise ScriptProblem(SPAWNS)
        start(self)

    process.start = start_other


def is_rank_of_its_own(function: Any, calls: int = 3) -> bool:
    """Tell whether a function trains or makes a group of ranks, or one that it calls does."""
    function = getattr(function, "func", function)  # of a partial
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    names = set(_names_in(code)) if isinstance(code, CodeType) else set()
    called = [known.get(name) for name in names] if calls else []
    return bool(names & OF_RANKS) or any(
        is_rank_of_its_own(one, calls - 1) for one in called if isinstance(one, FunctionType)
    )


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def launched(words: Sequence[str], env: Mapping[Any, Any]) -> tuple[str, str] | None:
    """Return the launcher that a command starts, and the script behind it; None: it starts none.

    ``env`` empty: this process's environment.
    """
    for i, word in enumerate(words):
        name = PurePath(word).name
        is_accelerate = name == "accelerate" and words[i + 1 : i + 2] == ["launch"]
        if is_accelerate or (i == 0 and name in PROGRAMS) or (words[:i][-1:] == ["-m"] and
                                                              word in MODULES):  # fmt: skip
            return ("accelerate launch" if is_accelerate else name), _script(words[i + 1 :])
        if word.endswith(".py") and name not in PROGRAMS:
            break
    env = {_text(key): _text(value) for key, value in env.items()}
    if "RANK" in env and env.get(ELASTIC, os.environ.get(ELASTIC)) != os.environ.get(ELASTIC):
        return "torchrun", _script(words)
    return None


def _script(words: Sequence[str]) -> str:
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    return "train.py" if place is None else shlex.join(words[place:])


def _words(command: Any) -> list[str]:
    text = isinstance(command, (str, bytes))
    words = _text(command).split() if text else [_text(word) for word in command]
    shell = words[:1] in (["/bin/sh"], ["sh"], ["bash"]) and words[1:2] == ["-c"]
    words = words[2].split() if shell and words[2:] else words
    return list(dropwhile(lambda word: word in ("env", "exec") or _SETTING.match(word), words))


def _text(value: Any) -> str:
    return os.fsdecode(value)


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
        from scalebench.worker.attach.timing import store_at
        from scalebench.worker.attach.watch import Watch

        address, limit_s = request["store"], request["limit_s"]
        connect = None if address is None else functools.partial(store_at, address, limit_s)
        attach.current = Watch(request, keep, connect)
        installed = hooks.install(attach.current)
        os.register_at_fork(after_in_child=installed.remove)
        _heed_other_port()

    exit_at_once = os._exit

    def exit_with_record(code: int) -> None:
        if os.getpid() == own_pid and not (code or getattr(attach.current, "over", True)):
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
    if attach.current is not None and attach.current.agreement.is_stuck:
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
        if attach.current is not None:
            attach.current.agreement.close()


def _store_end(error: BaseException | None, keep: Callable[[dict[str, Any]], None]) -> int:
    watch = attach.current
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
        "loaded": getattr(attach.current, "loaded", []),
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
