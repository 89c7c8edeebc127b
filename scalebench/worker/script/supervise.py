"""Runs one rank of the user's script, or watches a rank in this process; leaves the rank's record.

A launcher forks this process for every rank. Like every rank it pins itself, or leads a session.
The interpreter that it starts inherits both, and ends with it.

In the process group that this process is already in, the watch is the same, without a process of
its own around it: the ranks' records come to rank 0 over the store by which the group has met.
"""

import faulthandler
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store

from scalebench.errors import UsageError
from scalebench.records.files import write_model
from scalebench.records.folder import Scratch
from scalebench.records.measured.rank import ErrorKind, RankError, RankRecord
from scalebench.records.paths import LaunchPaths
from scalebench.records.secret import new_secret
from scalebench.spec import Cell, Device
from scalebench.spec.base import as_given
from scalebench.spec.script import ScriptTarget
from scalebench.worker import attach
from scalebench.worker.attach import hooks
from scalebench.worker.attach.traffic import IF_IT_TRAINED, NO_STEP
from scalebench.worker.attach.watch import Watch
from scalebench.worker.measure.rounds import combine
from scalebench.worker.process import setup as process
from scalebench.worker.process.store_queue import SealedStore, listen, rendezvous_store, serve_on
from scalebench.worker.process.token import GRACE_S
from scalebench.worker.script.errors import (
    Place,
    compare_clocks,
    ended,
    error_of,
    group_of,
    meet,
    own_address,
    sent_by_rank_0,
)
from scalebench.worker.script.record import TooShort, exchange, rank_fields, seen_by

END_GRACE_S = 10.0
"""How long a script may take to end after everything was measured; then it is killed."""

POLL_S = 0.5

MASTER_LIMIT = timedelta(seconds=300)
LONGER = "Have it train longer: what is not needed is not run"

_OF_OTHER_LAUNCHERS = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|NTASKS|NPROCS|NNODES|TASK_PID|STEP_.*|TASKS_PER_NODE)$"
    r"|TORCHELASTIC_ERROR_FILE$|OMPI_|PMI|PMIX_|MPI_LOCAL|MV2_COMM"
)
"""Variables by which srun and mpirun tell a process its place."""
_NUMBERS = count()


def run_script(
    request: dict[str, Any], cell: Cell, paths: LaunchPaths, identity: dict[str, Any]
) -> int:
    """Run one rank of a script and write its record; return the process's exit code.

    ``identity``: ``rank``, ``local_rank``, ``pid`` and ``host`` of the record.
    """
    rank, record_file = identity["rank"], paths.record(identity["rank"])
    facts = process.prepare_rank(cell, identity["local_rank"])
    store = _store(request, paths, cell)
    places = meet(store, rank, cell.world_size, identity)
    served, own = _serve_master(paths) if rank == 0 else (None, None)
    addresses = sent_by_rank_0(store, own)
    if store.key:  # others can read what was told
        addresses["key"] = store.key
    before = compare_clocks(store, rank, places, "before")
    raw_file = paths.root / f"attach{rank}.json"
    variables = environment_for(cell, identity, addresses, places)
    done = run_process(request, cell, paths, identity, addresses, variables, raw_file)
    raw = json.loads(raw_file.read_text()) if raw_file.exists() else {}
    if not raw or "error" in raw:
        log = Path(request["log"])
        error = error_of(raw.get("error"), done.code, _script(cell), log)
        write_model(record_file, RankRecord(**identity, error=error))
        return 1
    try:
        everybody = exchange(store, rank, cell.world_size, seen_by(raw))
        clock = combine(before, compare_clocks(store, rank, places, "after"))
        fields = rank_fields(cell, raw, everybody, clock)
    except ValueError as problem:
        kind: ErrorKind = "usage"
        message = str(problem)
        if isinstance(problem, TooShort):
            kind, log = "ended", Path(request["log"])
            message = ended(message, LONGER, raw["loaded"], log)
        error = RankError(kind=kind, message=message, time_ns=time.monotonic_ns())
        write_model(record_file, RankRecord(**identity, error=error))
        return 1
    del served  # till here
    facts |= {**fields.pop("facts"), "killed_at_end": done.killed}
    write_model(record_file, RankRecord(**identity, **fields, facts=facts), indent=None)
    if places[rank].host != places[0].host:  # rank 0's own goes with its launch
        shutil.rmtree(addresses["run_dir"], ignore_errors=True)
    return 0


def _script(cell: Cell) -> ScriptTarget:
    assert isinstance(cell.workload, ScriptTarget)
    return cell.workload


def _serve_master(paths: LaunchPaths) -> tuple[Store, dict[str, Any]]:
    """Serve the store by which the script's ranks meet, at one address of this machine.

    Rank 0 of the script would serve it itself, and torch's store listens at every address.

    Returns:
        The store, which is served while it is kept; and what the other ranks need to know:
        ``host`` and ``master`` (its port), ``run_dir``, and the ``key`` of the watch's schedule.
    """
    host = own_address()
    listening = listen(host, 0)
    port = listening.getsockname()[1]
    told = {"host": host, "master": port, "run_dir": os.fspath(paths.root / "run_dir")}
    return serve_on(listening, host, MASTER_LIMIT), {**told, "key": new_secret()}


def _store(request: dict[str, Any], paths: LaunchPaths, cell: Cell) -> SealedStore:
    found = rendezvous_store(request, paths, cell)
    store = found if isinstance(found, Store) else FileStore(os.fspath(found), cell.world_size)
    store.set_timeout(timedelta(seconds=cell.limit_s))
    return SealedStore(store, request["store"]["key"] if "store" in request else "")


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
        "program": as_given(script.program),
        "module": script.module,
        "arguments": [as_given(word) for word in script.arguments_for(values)],
        "rank": identity["rank"],
        "world_size": cell.world_size,
        "device": cell.device,
        "folder": os.fspath(paths.root),
        "store": {"host": addresses["host"], "port": addresses["master"]} if several else None,
        "key": addresses["key"],
        "limit_s": cell.limit_s,
        "plan": cell.steps.model_dump(),
        "to_the_end": script.to_the_end,
    }


def environment_for(
    cell: Cell, identity: dict[str, Any], addresses: dict[str, Any], places: Sequence[Place]
) -> dict[str, str]:
    """Return the environment of the script's process: this one's, its own, torchrun's variables.

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
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    if cell.device == "cpu":
        # Without the second, accelerate makes no group of ranks where it finds no GPU.
        given |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    kept = {k: v for k, v in os.environ.items() if not _OF_OTHER_LAUNCHERS.match(k)}
    own = dict(setting.split("=", 1) for setting in _script(cell).environment)
    return {**kept, **own, **given}


class ScriptEnd(NamedTuple):
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
) -> ScriptEnd:
    """Run the script's process to its end."""
    told = paths.root / f"request{identity['rank']}.json"
    told.write_text(json.dumps(request_for(cell, paths, identity, addresses)))
    program = Path(attach.__file__).with_name("start.py")
    own_pid = os.getpid()
    script = _script(cell)
    child = subprocess.Popen(
        [script.python, *script.python_options, os.fspath(program), os.fspath(told)],
        env=variables,
        preexec_fn=lambda: process.die_with_parent(own_pid),
    )
    ended, asked = threading.Event(), threading.Event()
    _pass_on_signals(child, asked)
    threading.Thread(target=_note_end, args=(child, ended), daemon=True).start()
    may_end_late = not script.to_the_end
    measured: float | None = None
    killed = False
    while not ended.wait(POLL_S):
        now = time.monotonic()
        if may_end_late and measured is None and raw_file.exists():
            measured = now
        if measured is None or now < measured + END_GRACE_S:
            continue
        if not killed:
            print("scalebench: the script did not end after its measurement; killed", flush=True)
            child.terminate()
            killed = True
        elif now > measured + END_GRACE_S + GRACE_S:
            child.kill()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if asked.is_set():
        os.kill(os.getpid(), signal.SIGTERM)  # the script's end is no news: no record of it
    return ScriptEnd(child.returncode, killed)


def _note_end(child: "subprocess.Popen[bytes]", ended: threading.Event) -> None:
    child.wait()
    ended.set()


def _pass_on_signals(child: "subprocess.Popen[bytes]", asked: threading.Event) -> None:
    """Have the script's process write its stacks when the launcher asks for them.

    SIGTERM comes to both at once. This process notes it, and waits for the other's end.
    """
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))


def device_here() -> Device:
    """Return where this process trains: on CUDA if it has begun to use it."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"


def rank_and_size() -> tuple[int, int]:
    """Return this rank and the number of ranks; without a process group, 0 and 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def num_threads() -> int:
    """Return torch's intra-op threads in this process."""
    return torch.get_num_threads()


class InProcess:
    """One rank's watch, from `begin` to `records`.

    Raises:
        UsageError: The process is being watched already.
    """

    def __init__(self, cell: Cell) -> None:
        if attach.current is not None:
            raise UsageError(
                "This process is being watched already: it runs under scalebench run, or in "
                "another scalebench.watch(). Leave one of them out."
            )
        self.cell = cell
        self.rank, self.world_size = rank_and_size()
        self.identity = {
            "rank": self.rank,
            "local_rank": int(os.environ.get("LOCAL_RANK", self.rank)),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self._scratch = Scratch()
        self._raw: dict[str, Any] = {}
        prefix = f"scalebench/watch{next(_NUMBERS)}"
        one_process = self.world_size == 1
        whole = HashStore() if one_process else dist.distributed_c10d._get_default_store()
        self._store = SealedStore(PrefixStore(prefix, whole), "")

    def begin(self) -> None:
        """Watch from now on; every rank has to call this."""
        places = meet(self._store, self.rank, self.world_size, self.identity)
        self._places = places
        self._before = compare_clocks(self._store, self.rank, places, "before")
        request = {
            "rank": self.rank,
            "world_size": self.world_size,
            "device": self.cell.device,
            "folder": os.fspath(self._scratch.folder),
            "limit_s": self.cell.limit_s,
            "plan": self.cell.steps.model_dump(),
            "to_the_end": True,
        }
        self._watch = attach.current = Watch(request, self._raw.update, self._store.store.clone)  # type: ignore[attr-defined]
        self._hooks = hooks.install(self._watch)

    def end(self) -> None:
        """Watch no longer: torch is as it was."""
        self._hooks.remove()
        attach.current = None
        self._watch.waits.end()
        self._watch.search.end()
        self._watch.agreement.close()

    def records(self) -> tuple[RankRecord, list[RankRecord]]:
        """Return this rank's record, and on rank 0 all of them; every rank has to call this.

        Raises:
            UsageError: There were too few steps to measure.
        """
        try:
            if not self._watch.over:
                if self._watch.num_calls == 0:
                    raise UsageError(f"{NO_STEP[0].upper()}{NO_STEP[1:]}. {IF_IT_TRAINED}.")
                self._watch.store()
            own = self._record()
        finally:
            self._scratch.close()
        self._store.set(f"record{self.rank}", own.model_dump_json())
        ranks = range(self.world_size) if self.rank == 0 else ()
        return own, [
            RankRecord.model_validate_json(self._store.get(f"record{rank}")) for rank in ranks
        ]

    def _record(self) -> RankRecord:
        everybody = exchange(self._store, self.rank, self.world_size, seen_by(self._raw))
        clock = combine(self._before, compare_clocks(self._store, self.rank, self._places, "after"))
        try:
            fields = rank_fields(self.cell, self._raw, everybody, clock)
        except ValueError as problem:
            raise UsageError(f"{problem}.") from None
        return RankRecord(**self.identity, **fields)


def survey_here() -> dict[str, Any]:
    """Return what torch says of this machine, from this process."""
    from scalebench.worker.survey import survey

    return survey()
