"""Why a rank of the user's script left no measurement, in the words of a rank's record."""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scalebench.errors import signal_name
from scalebench.records.measured.rank import ErrorKind, RankError
from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.problems import NO_STEP
from scalebench.worker.process.failure import first_line_of, kind_of, storable

LOG_TAIL_BYTES = 8192
LAST_LINES = 3
OF_TORCH = re.compile(r"(\[rank\d+\]:)?\[[IW]\d{4}")
"""Begins a warning of torch's own, not of the script."""

NO_TORCH = "No module named 'torch'"

PORT_IS_TAKEN = ("eaddrinuse", "address already in use")

OTHER_PORT = (
    "Another program uses that port. Leave MASTER_PORT as it is in the environment, which names a "
    "free one, or have the script choose another"
)


def error_of(
    stored: dict[str, Any] | None, code: int, script: ScriptTarget, log: Path
) -> RankError:
    """Return the error of a rank.

    ``stored``: what the script's process has stored of its error. ``code`` is negative for a
    signal.
    """
    if stored is None:
        return _without_a_word(code, script, log)
    types, message = set(stored["types"]), storable(stored["message"] or stored["types"][0])
    first_line = first_line_of(message)
    kind: ErrorKind = "exception"
    text = f"{stored['types'][0]}: {first_line}"
    if "NoStep" in types:
        what = f"{script.shown}: {NO_STEP}"
        kind, text = "ended", ended(what, first_line, stored["loaded"], log)
    elif "ScriptProblem" in types:
        kind, text = "usage", f"{script.shown}: {first_line}"
    elif _found_no_module(stored["types"][0], message, script):
        kind = "usage"
        text = (
            f"There is no module {script.program} in this folder or in what {script.python} has "
            f"installed ({first_line})"
        )
    elif stored["types"][0] == "ModuleNotFoundError" and message == NO_TORCH:
        kind = "usage"
        text = (
            f"{script.python}, which runs {script.shown}, has no torch. Activate the environment "
            "that has it, name its interpreter with --python, or leave out the word python"
        )
    elif "SystemExit" in types:
        kind, text = _exit(stored["code"], script, log)
    else:
        kind = kind_of(types, message)
        if any(words in message.lower() for words in PORT_IS_TAKEN):
            text = f"{text.rstrip('.')}. {OTHER_PORT}"
    return RankError(
        kind=kind,
        message=text,
        traceback=None if stored["traceback"] is None else storable(stored["traceback"]),
        time_ns=stored["time_ns"],
    )


def _found_no_module(type_name: str, message: str, script: ScriptTarget) -> bool:
    """Tell whether ``python -m`` itself failed, and not an import in the module's code."""
    words = ("No module named", "Error while finding module specification")
    at_start = type_name == "ImportError" and message.startswith(words)
    return script.module and at_start and script.program.split(".")[0] in message


def _exit(code: Any, script: ScriptTarget, log: Path) -> tuple[ErrorKind, str]:
    """Return kind and message of a script that has left by itself before anything was measured."""
    if code == 2:  # what argparse does
        return "usage", (
            f"{script.shown} did not accept its arguments: {_last_line(log)}. "
            "Put the script's arguments after its name"
        )
    if isinstance(code, str):
        return "exit", f"{script.shown} ended itself: {storable(code).splitlines()[0]}"
    return "exit", f"{script.shown} ended itself with exit code {code}: {_last_line(log)}"


def _without_a_word(code: int, script: ScriptTarget, log: Path) -> RankError:
    if code < 0:
        kind: ErrorKind = "signal"
        message = f"{script.shown} was killed by {signal_name(-code)}"
    else:
        kind = "exit"
        message = f"{script.shown} ended with exit code {code}: {_last_line(log)}"
    return RankError(kind=kind, message=message, time_ns=time.monotonic_ns())


def ended(what: str, advice: str, loaded: Iterable[str], log: Path) -> str:
    """Say what a script that has ended by itself too early has printed, and where it went on from.

    ``loaded``: checkpoints in the working folder that it has loaded. Where the log is empty, rank 0
    speaks.
    """
    first = log.with_name("rank0.log")
    log = log if _lines(log) or not _lines(first) else first
    printed = " / ".join((_lines(log) or [])[-LAST_LINES:]) or "nothing"
    where = "/".join(log.parts[-3:])
    files = ", ".join(loaded)
    if files:
        advice = (
            f"It went on from {files}, which an earlier launch may have left: give the script "
            "{run_dir} as its output folder, for example --output {run_dir}: an empty folder of "
            "each launch"
        )
    return f"{what}. It ended by itself and printed last: {printed.rstrip('.')} ({where}). {advice}"


def _last_line(log: Path) -> str:
    lines = _lines(log)
    if lines is None:
        return "its log cannot be read"
    return lines[-1] if lines else "it printed nothing"


def _lines(log: Path) -> list[str] | None:
    """Return the last lines of a log that a script printed; None: it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not OF_TORCH.match(line)]
