"""On what ranks of this machine run."""

from scalebench.launch.local import LocalLauncher
from scalebench.machine import fingerprint
from scalebench.spec import Device


def device_here() -> Device:
    """Return cuda where there is such a device; torch is asked in a process of its own."""
    with LocalLauncher() as launcher:
        return "cuda" if fingerprint(launcher.survey(), launcher.world)["devices"] else "cpu"
