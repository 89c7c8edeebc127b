"""What a run takes for itself before its first launch: virtual hosts, GPUs, a folder."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scalebench.launch.base import Launcher
from scalebench.records.folder import claim_folder, working_on
from scalebench.records.paths import RunPaths, default_runs_folder
from scalebench.records.run import RunInfo, RunSpec
from scalebench.session.machine.gpu_locks import GpuClaims


def claim_devices(
    launcher: Launcher,
    claims: GpuClaims,
    spec: RunSpec,
    environment: Mapping[str, Any],
    allow_busy: bool,
) -> list[str]:
    """Make the virtual hosts that a run asks for, and claim the GPUs that its ranks run on.

    Returns:
        A notice for each GPU that another process measures on.

    Raises:
        EnvironmentUnfit: The hosts cannot be made, or another run measures on a GPU.
    """
    if spec.virtual_hosts is not None:
        launcher.move_to(spec.virtual_hosts, max(spec.world_sizes))
    if spec.device != "cuda":
        return []
    return claims.claim([device["uuid"] for device in environment.get("devices", [])], allow_busy)


@dataclass(frozen=True)
class Devices:
    """The devices of a run that leaves them to others between its rounds."""

    launcher: Launcher
    claims: GpuClaims
    allow_busy: bool

    def let_go(self) -> None:
        """Leave the GPUs to others."""
        self.claims.close()

    def claim(self, info: RunInfo) -> list[str]:
        """Take them again; see `claim_devices`."""
        return claim_devices(
            self.launcher, self.claims, info.spec, info.environment, self.allow_busy
        )


def run_id_of(started: datetime, spec: RunSpec) -> str:
    """Return ``<utc>_<suites>_<device>_<sha7>``; the digest is of the specification."""
    suites = "+".join(suite.name for suite in spec.suites)[:60]
    digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:7]
    return f"{started:%Y%m%dT%H%M%SZ}_{suites}_{spec.device}_{digest}"


def begin_in(out: Path | None, run_id: str) -> AbstractContextManager[RunPaths]:
    """Hold the folder of a new run for the duration of a block; None: make one for it."""
    return working_on(out or claim_folder(default_runs_folder() / run_id), new=True)
