"""Errors that a user sees as one line, and the exit codes of the command line.

An error's text names what was given, what is valid and what to do next. What is unforeseen is a
defect: its traceback goes to a file.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers to its caller; a contract that scripts rely on."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    CELLS_FAILED = 4
    ENVIRONMENT = 5
    DEFECT = 70
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class ScalebenchError(Exception):
    """An error whose text is meant for the user; it ends the command with ``exit_code``."""

    exit_code = ExitCode.CELLS_FAILED


class UsageError(ScalebenchError):
    """The command line, a suite, a workload or a file given by the user cannot be used."""

    exit_code = ExitCode.USAGE


class EnvironmentUnfit(ScalebenchError):
    """This machine or this Python environment cannot do what was asked."""

    exit_code = ExitCode.ENVIRONMENT


def signal_name(number: int) -> str:
    """Return a signal's name: ``"SIGKILL"``, ``"signal 35"`` where it has none."""
    known = number in set(signal.Signals)
    return signal.Signals(number).name if known else f"signal {number}"


def unknown_name(kind: str, given: str, valid: Iterable[str]) -> UsageError:
    """Return the error for a name that does not exist: the valid ones, the nearest first."""
    names = sorted(valid)
    nearest = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UsageError(f"There is no {kind} {given!r}.{hint} Valid: {', '.join(names) or 'none'}.")


def defect(error: BaseException) -> str:
    """Store the traceback of an unforeseen error; return the line for the user.

    The file is private: a traceback may show what the user works on.
    """
    from scalebench import __version__

    about = f"scalebench {__version__}, Python {sys.version.split()[0]}\n"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    try:
        descriptor, where = tempfile.mkstemp(prefix="scalebench-defect-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(about + "".join(traceback.format_exception(error)))
    except OSError as refused:
        kept = f"Its traceback could not be stored ({refused.strerror})"
    else:
        kept = f"Report it where you got scalebench from, with its traceback: {where}"
    return f"scalebench has a defect, and this is no verdict: {what}. {kept}."
