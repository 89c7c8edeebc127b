"""Steps of a Slurm allocation as launches, and batch scripts that make the allocation."""

from scalebench.launch.slurm.launcher import SlurmLauncher

__all__ = ["SlurmLauncher"]
