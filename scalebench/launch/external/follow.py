"""What every process of a world but the first one becomes."""

import os
import sys
from typing import NoReturn

from scalebench.launch.scratch import Scratch
from scalebench.world import Member

WORKER = "scalebench.worker.world.follower"


def follow(member: Member) -> NoReturn:
    """Become the worker that takes part in what the first process decides; never returns.

    The process keeps its number: whoever started it goes on watching it.
    """
    scratch = Scratch()
    scratch.bequeath()
    sys.stdout.flush()
    arguments = [member.model_dump_json(), os.fspath(scratch.folder)]
    os.execv(sys.executable, [sys.executable, "-m", WORKER, *arguments])
