"""Which wires NCCL takes: read from a user's logs, or tried on the GPUs of this machine."""

from collections.abc import Sequence
from pathlib import Path

from scalebench.costmodel.links.nccl_log import merged as merged_logs
from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.costmodel.links.topology import wire_findings
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import ProbeFailed
from scalebench.launch.local import LocalLauncher
from scalebench.machine import host_links
from scalebench.records.measured.wires import NcclWires
from scalebench.spec.probes import Sweep, Transfer

LIMIT_S = 300.0
SIZE_BYTES = 1 << 20


def wires_of_logs(files: Sequence[Path]) -> NcclWires:
    """Return the wires of one job, from its log or from those of all its processes.

    What this machine says of its links counts if the log was written here.

    Raises:
        UsageError: A file cannot be read, or none has a line of NCCL's log.
    """
    lines: list[str] = []
    for file in files:
        try:
            lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise UsageError(f"--nccl-log {file}: {error.strerror}. Give a log of NCCL.") from None
    here = host_links()
    wires = read_nccl_log(lines, [] if here.host == "localhost" else [here])
    if wires is None:
        raise UsageError(
            f"--nccl-log {', '.join(map(str, files))}: no line of NCCL's log. Have NCCL write one: "
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH NCCL_DEBUG_FILE=nccl.%h.%p."
        )
    return _with_verdict(wires)


def wires_here() -> NcclWires:
    """Have every GPU of this machine send to every other, and return which wires NCCL took.

    Raises:
        EnvironmentUnfit: There are no two GPUs, or NCCL fails on them or writes no log.
    """
    with LocalLauncher() as launcher:
        survey = launcher.survey()
        num_gpus = len(survey["devices"])
        if num_gpus < 2 or "nccl" not in survey["backends"]:
            raise EnvironmentUnfit(
                f"doctor --links needs two GPUs and a torch with NCCL. Here: {num_gpus} GPUs, "
                f"backends {', '.join(survey['backends'])}. To read a log: --nccl-log FILE."
            )
        plan = Sweep(
            world_size=num_gpus,
            device="cuda",
            backend="nccl",
            threads=1,
            limit_s=LIMIT_S,
            transfers=tuple(
                Transfer(operation=name, size_bytes=SIZE_BYTES)
                for name in ("all_reduce", "all_to_all")
            ),
            repeats=1,
            nccl_log=True,
        )
        try:
            records = launcher.probe(plan, launcher.scratch / "links")
        except ProbeFailed as failed:
            raise EnvironmentUnfit(f"NCCL fails on the GPUs of this machine: {failed}") from None
    logs = [record.wires for record in records if record.wires is not None]
    if not logs:
        raise EnvironmentUnfit("NCCL wrote no log: unset NCCL_DEBUG and NCCL_DEBUG_FILE.")
    return _with_verdict(merged_logs(logs))


def _with_verdict(wires: NcclWires) -> NcclWires:
    return wires.model_copy(update={"findings": wire_findings(wires)})
