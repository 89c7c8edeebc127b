"""Watches the training of the process group that this process is already in.

The same watch as in a user's script, without a process of its own around it: the ranks' records
come to rank 0 over the store by which the group has met.
"""

import os
import socket
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from scalebench.errors import UsageError
from scalebench.records.measured.rank import RankRecord
from scalebench.records.storage.folder import Scratch
from scalebench.spec import Cell, Device
from scalebench.worker.attach import hooks, interface
from scalebench.worker.attach.problems import IF_IT_TRAINED, NO_STEP
from scalebench.worker.attach.watch import Watch
from scalebench.worker.measure.alignment import combine
from scalebench.worker.process.store_queue import SealedStore
from scalebench.worker.script.places import compare_clocks, meet
from scalebench.worker.script.record import exchange, rank_fields, seen_by

_NUMBERS = count()


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
        if interface.watch is not None:
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
        self._watch = interface.watch = Watch(request, self._raw.update, self._store.store.clone)  # type: ignore[attr-defined]
        self._hooks = hooks.install(self._watch)

    def end(self) -> None:
        """Watch no longer: torch is as it was."""
        self._hooks.remove()
        interface.watch = None
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
