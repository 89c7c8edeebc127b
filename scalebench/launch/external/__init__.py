"""Worlds that torchrun, srun, mpirun or the like have started: every process there is one rank."""

from scalebench.launch.external.environment import find_member
from scalebench.launch.external.launcher import ExternalLauncher, run_agent

__all__ = ["ExternalLauncher", "find_member", "run_agent"]
