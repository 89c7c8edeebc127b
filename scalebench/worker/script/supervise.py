"""Runs one rank of the user's script in an interpreter of its own, and leaves the rank's record.

A launcher forks this process for every rank. Like every rank it pins itself, or leads a session.
The interpreter that it starts inherits both, and ends with it.
"""

import faulthandler
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch._C._distributed_c10d import FileStore, Store

from scalebench.records.files import write_model
from scalebench.records.paths import LaunchPaths
from scalebench.records.rank import RankError, RankRecord
from scalebench.spec import Cell
from scalebench.spec.script import ScriptTarget
from scalebench.worker import attach
from scalebench.worker.measure.alignment import combine
from scalebench.worker.process import setup as process
from scalebench.worker.process.rendezvous import rendezvous_store
from scalebench.worker.script.errors import error_of
from scalebench.worker.script.places import (
    Place,
    agree_on_addresses,
    compare_clocks,
    group_of,
    meet,
)
from scalebench.worker.script.record import RankSeen, rank_fields, seen_by

END_GRACE_S = 10.0
"""How long a script may take to end after everything was measured; then it is killed."""

POLL_S = 0.5

_OF_OTHER_LAUNCHERS = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|NTASKS|NPROCS|NNODES|TASK_PID|STEP_.*|TASKS_PER_NODE)$"
    r"|TORCHELASTIC_ERROR_FILE$|OMPI_|PMI|PMIX_|MPI_LOCAL|MV2_COMM"
)
"""Variables by which srun and mpirun tell a process its place."""


def run_script(
    request: dict[str, Any], cell: Cell, paths: LaunchPaths, identity: dict[str, Any]
) -> int:
    """Run one rank of a script and write its record; return the process's exit code.

    Args:
        request: As for `scalebench.worker.rank.run_cell`.
        cell: Its workload is the script.
        paths: Of the launch.
        identity: ``rank``, ``local_rank``, ``pid`` and ``host`` of the record.
    """
    rank, record_file = identity["rank"], paths.record(identity["rank"])
    facts = process.settle(cell, identity["local_rank"])
    store = _store(request, paths, cell)
    places = meet(store, rank, cell.world_size, identity)
    own_run_dir = os.fspath(paths.root / "run_dir")
    addresses = agree_on_addresses(store, rank, own_run_dir)
    before = compare_clocks(store, rank, places, "before")
    raw_file = paths.root / f"attach{rank}.json"
    variables = environment_for(cell, identity, addresses, places)
    ended = run_process(request, cell, paths, identity, addresses, variables, raw_file)
    raw = json.loads(raw_file.read_text()) if raw_file.exists() else {}
    if not raw or "error" in raw:
        log = Path(request["log"])
        error = error_of(raw.get("error"), ended.code, _script(cell), log)
        write_model(record_file, RankRecord(**identity, error=error))
        return 1
    try:
        everybody = _exchange(store, cell, rank, seen_by(raw))
        clock = combine(before, compare_clocks(store, rank, places, "after"))
        fields = rank_fields(cell, raw, everybody, clock)
    except ValueError as problem:
        error = RankError(kind="usage", message=str(problem), time_ns=time.monotonic_ns())
        write_model(record_file, RankRecord(**identity, error=error))
        return 1
    facts |= {**fields.pop("facts"), "killed_at_end": ended.killed}
    write_model(record_file, RankRecord(**identity, **fields, facts=facts), indent=None)
    if places[rank].host != places[0].host:  # rank 0's own goes with its launch
        shutil.rmtree(addresses["run_dir"], ignore_errors=True)
    return 0


def _script(cell: Cell) -> ScriptTarget:
    assert isinstance(cell.workload, ScriptTarget)
    return cell.workload


def _store(request: dict[str, Any], paths: LaunchPaths, cell: Cell) -> Store:
    found = rendezvous_store(request, paths, cell)
    store = found if isinstance(found, Store) else FileStore(os.fspath(found), cell.world_size)
    store.set_timeout(timedelta(seconds=cell.limit_s))
    return store


def _exchange(store: Store, cell: Cell, rank: int, own: RankSeen) -> list[RankSeen]:
    """Return what every rank has seen, by rank."""
    store.set(f"seen{rank}", own.model_dump_json())
    return [
        RankSeen.model_validate_json(store.get(f"seen{other}")) for other in range(cell.world_size)
    ]


def request_for(
    cell: Cell, paths: LaunchPaths, identity: dict[str, Any], addresses: dict[str, Any]
) -> dict[str, Any]:
    """Return what the script's own process is told; `scalebench.worker.attach.script` reads it."""
    script = _script(cell)
    Path(addresses["run_dir"]).mkdir(parents=True, exist_ok=True)
    values = {
        "world_size": cell.world_size,
        "global_batch": cell.global_batch,
        "rank_batch": cell.rank_batch,
        "run_dir": addresses["run_dir"],
    }
    several = cell.world_size > 1
    return {
        "program": script.program,
        "module": script.module,
        "arguments": script.arguments_for(values),
        "rank": identity["rank"],
        "world_size": cell.world_size,
        "device": cell.device,
        "folder": os.fspath(paths.root),
        "store": {"host": addresses["host"], "port": addresses["watch"]} if several else None,
        "limit_s": cell.limit_s,
        "plan": cell.steps.model_dump(),
        "to_the_end": script.to_the_end,
    }


def environment_for(
    cell: Cell,
    identity: dict[str, Any],
    addresses: dict[str, Any],
    places: Sequence[Place],
) -> dict[str, str]:
    """Return the environment of the script's process: this one's, and torchrun's variables.

    What another launcher has told this process of its place is left out: a script that looks for
    it first would take that for its own.

    Source: torch.distributed.elastic.agent.server.local_elastic_agent.
    """
    group, num_groups, local_size = group_of(places, identity["rank"])
    rank, local_rank = str(identity["rank"]), str(identity["local_rank"])
    size = str(cell.world_size)
    given = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(num_groups),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": addresses["host"],
        "MASTER_PORT": str(addresses["master"]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": cell.id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    if cell.device == "cpu":
        given["CUDA_VISIBLE_DEVICES"] = ""
    kept = {k: v for k, v in os.environ.items() if not _OF_OTHER_LAUNCHERS.match(k)}
    return {**kept, **given}


class Ended(NamedTuple):
    """How a script's process ended.

    Attributes:
        code: Its exit code, negative for a signal.
        killed: It ran on for more than `END_GRACE_S` after its measurement, and was killed.
    """

    code: int
    killed: bool


def run_process(
    request: dict[str, Any],
    cell: Cell,
    paths: LaunchPaths,
    identity: dict[str, Any],
    addresses: dict[str, Any],
    variables: dict[str, str],
    raw_file: Path,
) -> Ended:
    """Run the script's process to its end."""
    told = paths.root / f"request{identity['rank']}.json"
    told.write_text(json.dumps(request_for(cell, paths, identity, addresses)))
    program = Path(attach.__file__).with_name("start.py")
    own_pid = os.getpid()
    child = subprocess.Popen(
        [_script(cell).python, os.fspath(program), os.fspath(told)],
        env=variables,
        preexec_fn=lambda: process.die_with_parent(own_pid),
    )
    _pass_on_signals(child)
    ended = threading.Event()
    threading.Thread(target=_note_end, args=(child, ended), daemon=True).start()
    may_end_late = not _script(cell).to_the_end
    measured: float | None = None
    killed = False
    while not ended.wait(POLL_S):
        if may_end_late and measured is None and raw_file.exists():
            measured = time.monotonic()
        if measured is not None and time.monotonic() > measured + END_GRACE_S:
            print("scalebench: the script did not end after its measurement; killed", flush=True)
            child.kill()
            measured = None
            may_end_late = False
            killed = True
    return Ended(child.returncode, killed)


def _note_end(child: "subprocess.Popen[bytes]", ended: threading.Event) -> None:
    child.wait()
    ended.set()


def _pass_on_signals(child: "subprocess.Popen[bytes]") -> None:
    """Have the script's process write its stacks when the launcher asks for them."""
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))
