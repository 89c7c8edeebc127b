"""Commands in a world that torchrun, srun or mpirun has started: one process speaks for all."""

import os
from typing import TYPE_CHECKING, Any

from scalebench.errors import UsageError
from scalebench.launch.launchers import LAUNCHERS
from scalebench.records.secret import TRUST, TRUSTED, given_secret

if TYPE_CHECKING:
    from scalebench.launch.base import Launcher
    from scalebench.spec.world import WorldMember


def place_in_world(flags: dict[str, Any]) -> "WorldMember | None":
    """Return this process's place in the world around it, or None: there is none.

    Only the first process of a world comes back from here; the others follow it.

    Raises:
        UsageError: A launcher was asked for as well, the environment contradicts itself, or the
            secret in it is too short.
    """
    from scalebench.launch.external import find_member, run_agent

    member = find_member(os.environ)
    if member is None:
        return None
    if flags["launcher"] is not None:
        raise UsageError(
            f"{member.launcher} has started this process as rank {member.rank} of "
            f"{member.world_size}, and --launcher {flags['launcher']} would start more ranks. "
            f"Leave out --launcher, or run scalebench outside of {member.launcher}."
        )
    # The processes that are started from here read it.
    os.environ[TRUST] = TRUSTED if flags["trust_network"] else ""
    given_secret(os.environ)
    if member.rank:
        run_agent(member)
    return member


def launcher_for(flags: dict[str, Any], member: "WorldMember | None") -> "Launcher | None":
    """Return the launcher of a world, or the one that was asked for; None: the default one."""
    if member is not None:
        from scalebench.launch.external import ExternalLauncher

        return ExternalLauncher(member)
    return None if flags["launcher"] is None else LAUNCHERS[flags["launcher"]].start()
