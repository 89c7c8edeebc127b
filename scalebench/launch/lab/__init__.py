"""Virtual hosts: network namespaces with shaped links, and CPU quotas, for ranks to run in."""

from scalebench.launch.lab.lab import Lab, Possible, try_lab

__all__ = ["Lab", "Possible", "try_lab"]
