"""Verdicts on two runs: what changed, how sure that is, and whether CI may pass.

`result` has the types that everything else shows or exports; `gate` makes them. Pure functions
over two summaries: no torch, no processes.
"""

import sys

from scalebench import CommandPackage

sys.modules[__name__].__class__ = CommandPackage
