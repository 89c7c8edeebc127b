"""Worlds that torchrun, srun, mpirun or the like have started: every process there is one rank."""

from scalebench.launch.external.environment import find_member
from scalebench.launch.external.follow import follow
from scalebench.launch.external.launcher import ExternalLauncher

__all__ = ["ExternalLauncher", "find_member", "follow"]
