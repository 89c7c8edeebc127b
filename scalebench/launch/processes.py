"""Processes that are started from here: their interpreter, and their end."""

import os
import subprocess
import sys
from typing import Any

END_LIMIT_S = 5.0
"""What a process that was told to end has for it."""


def interpreter() -> list[str]:
    """Return the words that start this Python, to be followed by ``-m`` and a module.

    ``-m`` alone looks for modules in the current folder first: a ``json.py`` there would be
    executed when suites are listed. So does only what was started with ``python -m`` itself;
    it may be a checkout, whose ranks have to be of the checkout too.
    """
    looks_here = not {"", os.getcwd()}.isdisjoint(sys.path)
    return [sys.executable] if looks_here else [sys.executable, "-P"]


def end_process(process: "subprocess.Popen[Any]") -> bool:
    """Wait for a process that is about to end; False: it did not within the limit, and is killed.

    Its end of every pipe is closed before: a helper ends when its standard input does.
    """
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(END_LIMIT_S)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
