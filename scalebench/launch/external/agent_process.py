"""What every process of a world but the first one becomes."""

import os
import sys
from typing import NoReturn

from scalebench.launch.interpreter import interpreter
from scalebench.spec.world import WorldMember

WORKER = "scalebench.worker.agent.agent"


def run_agent(member: WorldMember) -> NoReturn:
    """Become the worker that takes part in what the first process decides; never returns.

    The process keeps its number: its parent goes on watching it.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [*interpreter(), "-m", WORKER, member.model_dump_json()])
