"""On what ranks of this machine run."""

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.local import LocalLauncher
from scalebench.machine import fingerprint
from scalebench.session.machine.unusable import refusal
from scalebench.spec import Device


def device_here() -> Device:
    """Return cuda where there is such a device; torch is asked in a process of its own.

    Raises:
        EnvironmentUnfit: There are devices that cannot be used, and the user has not hidden them.
    """
    with LocalLauncher() as launcher:
        facts = fingerprint(launcher.survey())
    unusable = refusal(facts, "CUDA_VISIBLE_DEVICES= in the environment")
    if unusable is not None:
        raise EnvironmentUnfit(unusable)
    return "cuda" if facts["devices"] else "cpu"
