"""What a trace shows of one rank: its communication, its computation, and both at once."""

import sys

from scalebench import CommandPackage

sys.modules[__name__].__class__ = CommandPackage
