"""The interpreter that ranks and helpers are started with."""

import os
import sys


def interpreter() -> list[str]:
    """Return the words that start this Python, to be followed by ``-m`` and a module.

    ``-m`` alone looks for modules in the current folder first: a ``json.py`` there would be
    executed when suites are listed. So does only what was started with ``python -m`` itself;
    it may be a checkout, whose ranks have to be of the checkout too.
    """
    looks_here = not {"", os.getcwd()}.isdisjoint(sys.path)
    return [sys.executable] if looks_here else [sys.executable, "-P"]
