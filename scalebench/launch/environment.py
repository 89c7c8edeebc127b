"""Who this process is in a world that somebody else has started, from its environment variables.

The innermost launcher counts: torchrun in a Slurm step is torchrun's world, and ``mpirun`` in an
allocation is MPI's. A shell inside a Slurm allocation is no world, although Slurm gives it a
``SLURM_PROCID`` as well: only a step of several tasks that srun has started is one.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from scalebench.errors import UsageError
from scalebench.spec.world import Rendezvous, WorldLauncher, WorldMember

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Numbers from here on are Slurm's own steps: batch script, interactive shell, extern."""

PORTS = range(15000, 32000)
"""Below the ports that systems give to outgoing connections."""


@dataclass(frozen=True)
class _Names:
    """The variables in which a launcher tells a process its place."""

    launcher: WorldLauncher
    rank: str
    world_size: str
    local_rank: str
    local_size: str


_PLAIN = _Names("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI = _Names(
    *("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_PMI = _Names("pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SLURM = _Names("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")


@dataclass(frozen=True)
class _Claim:
    """What one launcher's variables say."""

    names: _Names
    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None

    @property
    def text(self) -> str:
        """The claim as it stands in the environment."""
        names = self.names
        return f"{names.rank}={self.rank} {names.world_size}={self.world_size}"


def find_member(environment: Mapping[str, str]) -> WorldMember | None:
    """Return this process's place in the world around it; None: there is none.

    Raises:
        UsageError: The variables contradict one another, or something needed is not told.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _member("torchrun", _required(environment), environment)
    innermost = (
        _claim(environment, _MPI)
        or _several(_claim(environment, _PMI))
        or (_several(_claim(environment, _SLURM)) if _in_srun_step(environment) else None)
    )
    plain = _several(_claim(environment, _PLAIN))
    if innermost is None:
        return None if plain is None else _member("environment", plain, environment)
    if plain is not None and (plain.rank, plain.world_size) != (
        innermost.rank,
        innermost.world_size,
    ):
        raise UsageError(
            f"The environment is inconsistent: {plain.text}, but {innermost.text} by "
            f"{innermost.names.launcher}. Unset RANK and WORLD_SIZE, or start one process per rank."
        )
    return _member(innermost.names.launcher, innermost, environment)


def why_no_world(environment: Mapping[str, str]) -> str | None:
    """Say why there is no world around this process, or None: there is one."""
    try:
        member = find_member(environment)
    except UsageError as error:
        return str(error)
    return (
        None if member is not None else "this process was not started by torchrun, srun or mpirun"
    )


def _in_srun_step(environment: Mapping[str, str]) -> bool:
    step = environment.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def _several(claim: _Claim | None) -> _Claim | None:
    """Return a claim of more than one process; one process alone can start ranks by itself."""
    return claim if claim is not None and claim.world_size > 1 else None


def _required(environment: Mapping[str, str]) -> _Claim:
    claim = _claim(environment, _PLAIN)
    if claim is None:
        raise UsageError("torchrun sets RANK and WORLD_SIZE, and both are missing.")
    return claim


def _claim(environment: Mapping[str, str], names: _Names) -> _Claim | None:
    """Return what a launcher's variables say; None: it has set none.

    Raises:
        UsageError: One of two is missing, or they are no place in a world.
    """
    there = [name for name in (names.rank, names.world_size) if name in environment]
    if not there:
        return None
    if len(there) == 1:
        missing = names.world_size if there[0] == names.rank else names.rank
        raise UsageError(
            f"{there[0]}={environment[there[0]]} is set but {missing} is not. Set both or neither."
        )
    rank, size = (_number(environment, name) for name in there)
    if rank is None or size is None or not rank < size:
        said = " ".join(f"{name}={environment[name]!r}" for name in there)
        raise UsageError(f"{said} is not a valid rank: ranks are 0 to {names.world_size} - 1.")
    local_rank = _number(environment, names.local_rank)
    return _Claim(names, rank, size, local_rank, _number(environment, names.local_size))


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def _member(launcher: WorldLauncher, claim: _Claim, environment: Mapping[str, str]) -> WorldMember:
    served = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    one_node = _on_one_node(claim, environment)
    return WorldMember(
        launcher=launcher,
        rank=claim.rank,
        world_size=claim.world_size,
        local_rank=claim.local_rank,
        rendezvous=Rendezvous(
            host="127.0.0.1" if one_node and not served else _host(launcher, environment),
            port=_port(launcher, environment),
            served=served,
            one_node=one_node,
            prefix=f"scalebench/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        ),
    )


def _on_one_node(claim: _Claim, environment: Mapping[str, str]) -> bool:
    if claim.names is _SLURM:
        return _number(environment, "SLURM_STEP_NUM_NODES") == 1
    return claim.local_size == claim.world_size


def _host(launcher: WorldLauncher, environment: Mapping[str, str]) -> str:
    given = environment.get("MASTER_ADDR")
    if given:
        return given
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if launcher in ("srun", "pmi") and nodes:
        return first_host(nodes)
    raise UsageError(
        f"The ranks of {launcher} may be on several machines, but MASTER_ADDR is not set. Set "
        "MASTER_ADDR to the address of rank 0's machine (mpirun -x MASTER_ADDR=...)."
    )


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: ``n[08-11,15],login`` → ``n08``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?([^\[,]*)", nodes)
    if match is None:
        raise UsageError(f"{nodes!r} is not a list of hosts in Slurm's format.")
    return match[1] + (match[2] or "") + match[3]


def _port(launcher: WorldLauncher, environment: Mapping[str, str]) -> int:
    """Return the port of the rendezvous: the one given, or one that follows from the job's name.

    Raises:
        UsageError: The one given is none.
    """
    given = environment.get("MASTER_PORT")
    if given is not None:
        port = _number(environment, "MASTER_PORT") or 0
        if not 0 < port < 65536:
            raise UsageError(
                f"MASTER_PORT={given!r} is not a port. Set it to a free port, 1 to 65535."
            )
        return port
    named = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    job = [environment[name] for name in named if name in environment]
    if not job and launcher != "mpirun":
        raise UsageError(
            "MASTER_PORT is not set, and no job id is set from which to choose a port. Set "
            "MASTER_ADDR and MASTER_PORT to where rank 0 listens."
        )
    return port_of(":".join(job))


def port_of(job: str) -> int:
    """Return a port that every process of a job works out alike."""
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)]
