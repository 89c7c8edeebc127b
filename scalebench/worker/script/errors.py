"""Why a rank of the user's script left no measurement; on which machines ranks are.

On which machines the ranks of a script are, and how their clocks stand to one another.

The processes that supervise the script's ranks tell one another over the store of the launch.
"""

import fcntl
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scalebench.errors import signal_name
from scalebench.records.measured.rank import ErrorKind, RankError
from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.traffic import NO_STEP
from scalebench.worker.measure.rounds import (
    ROUND_TRIPS,
    ClockOffset,
    Exchange,
    clock_name,
    offset_of,
)
from scalebench.worker.process.failure import first_line_of, kind_of, storable
from scalebench.worker.process.store_queue import SealedStore

LOG_TAIL_BYTES = 8192
LAST_LINES = 3
OF_TORCH = re.compile(r"(\[rank\d+\]:)?\[[IW]\d{4}")
"""Begins a warning of torch's own, not of the script."""

NO_TORCH = "No module named 'torch'"

PORT_IS_TAKEN = ("eaddrinuse", "address already in use")

OTHER_PORT = (
    "Another program uses that port. Leave MASTER_PORT as it is in the environment, which names a "
    "free one, or have the script choose another"
)
SIOCGIFADDR = 0x8915
"""See netdevice(7)."""


def error_of(
    stored: dict[str, Any] | None, code: int, script: ScriptTarget, log: Path
) -> RankError:
    """Return the error of a rank.

    ``stored``: what the script's process has stored of its error. ``code`` is negative for a
    signal.
    """
    if stored is None:
        return _without_a_word(code, script, log)
    types, message = set(stored["types"]), storable(stored["message"] or stored["types"][0])
    first_line = first_line_of(message)
    kind: ErrorKind = "exception"
    text = f"{stored['types'][0]}: {first_line}"
    if "NoStep" in types:
        what = f"{script.shown}: {NO_STEP}"
        kind, text = "ended", ended(what, first_line, stored["loaded"], log)
    elif "ScriptProblem" in types:
        kind, text = "usage", f"{script.shown}: {first_line}"
    elif _found_no_module(stored["types"][0], message, script):
        kind = "usage"
        text = (
            f"There is no module {script.program} in this folder or in what {script.python} has "
            f"installed ({first_line})"
        )
    elif stored["types"][0] == "ModuleNotFoundError" and message == NO_TORCH:
        kind = "usage"
        text = (
            f"{script.python}, which runs {script.shown}, has no torch. Activate the environment "
            "that has it, name its interpreter with --python, or leave out the word python"
        )
    elif "SystemExit" in types:
        kind, text = _exit(stored["code"], script, log)
    else:
        kind = kind_of(types, message)
        if any(words in message.lower() for words in PORT_IS_TAKEN):
            text = f"{text.rstrip('.')}. {OTHER_PORT}"
    return RankError(
        kind=kind,
        message=text,
        traceback=None if stored["traceback"] is None else storable(stored["traceback"]),
        time_ns=stored["time_ns"],
    )


def _found_no_module(type_name: str, message: str, script: ScriptTarget) -> bool:
    """Tell whether ``python -m`` itself failed, and not an import in the module's code."""
    words = ("No module named", "Error while finding module specification")
    at_start = type_name == "ImportError" and message.startswith(words)
    return script.module and at_start and script.program.split(".")[0] in message


def _exit(code: Any, script: ScriptTarget, log: Path) -> tuple[ErrorKind, str]:
    """Return kind and message of a script that has left by itself before anything was measured."""
    if code == 2:  # what argparse does
        return "usage", (
            f"{script.shown} did not accept its arguments: {_last_line(log)}. "
            "Put the script's arguments after its name"
        )
    if isinstance(code, str):
        return "exit", f"{script.shown} ended itself: {storable(code).splitlines()[0]}"
    return "exit", f"{script.shown} ended itself with exit code {code}: {_last_line(log)}"


def _without_a_word(code: int, script: ScriptTarget, log: Path) -> RankError:
    if code < 0:
        kind: ErrorKind = "signal"
        message = f"{script.shown} was killed by {signal_name(-code)}"
    else:
        kind = "exit"
        message = f"{script.shown} ended with exit code {code}: {_last_line(log)}"
    return RankError(kind=kind, message=message, time_ns=time.monotonic_ns())


def ended(what: str, advice: str, loaded: Iterable[str], log: Path) -> str:
    """Say what a script that has ended by itself too early has printed, and where it went on from.

    ``loaded``: checkpoints in the working folder that it has loaded. Where the log is empty, rank 0
    speaks.
    """
    first = log.with_name("rank0.log")
    log = log if _lines(log) or not _lines(first) else first
    printed = " / ".join((_lines(log) or [])[-LAST_LINES:]) or "nothing"
    where = "/".join(log.parts[-3:])
    files = ", ".join(loaded)
    if files:
        advice = (
            f"It went on from {files}, which an earlier launch may have left: give the script "
            "{run_dir} as its output folder, for example --output {run_dir}: an empty folder of "
            "each launch"
        )
    return f"{what}. It ended by itself and printed last: {printed.rstrip('.')} ({where}). {advice}"


def _last_line(log: Path) -> str:
    lines = _lines(log)
    if lines is None:
        return "its log cannot be read"
    return lines[-1] if lines else "it printed nothing"


def _lines(log: Path) -> list[str] | None:
    """Return the last lines of a log that a script printed; None: it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not OF_TORCH.match(line)]


class Place(BaseModel):
    """Where a rank is.

    Attributes:
        clock: What names the machine's clock; empty: nothing does.
    """

    host: str
    local_rank: int
    clock: str


def meet(store: SealedStore, rank: int, world_size: int, identity: dict[str, Any]) -> list[Place]:
    """Tell where this rank is, and return where all are, by rank."""
    own = Place(host=identity["host"], local_rank=identity["local_rank"], clock=clock_name())
    store.set(f"place{rank}", own.model_dump_json())
    return [Place.model_validate_json(store.get(f"place{other}")) for other in range(world_size)]


def sent_by_rank_0(store: SealedStore, own: dict[str, Any] | None) -> dict[str, Any]:
    """Return what rank 0 has to say of the launch.

    ``own``: what it is, on rank 0; None: on the others.
    """
    if own is not None:
        store.set("addresses", json.dumps(own))
    return dict(json.loads(store.get("addresses")))


def group_of(places: Sequence[Place], rank: int) -> tuple[int, int, int]:
    """Return the number of a rank's machine, of machines, and of ranks on its machine."""
    hosts = list(dict.fromkeys(place.host for place in places))
    host = places[rank].host
    return hosts.index(host), len(hosts), sum(place.host == host for place in places)


def compare_clocks(
    store: SealedStore,
    rank: int,
    places: Sequence[Place],
    when: str,
    clock: Callable[[], int] = time.monotonic_ns,
) -> ClockOffset:
    """Compare this rank's clock with rank 0's; every rank has to call this at the same time.

    Ranks that read rank 0's clock exchange nothing. The others ask it one after the other.

    ``places`` are of all ranks; no other comparison in this store has the word ``when``. ``clock``
    tells nanoseconds.
    """
    name = places[0].clock
    others = [r for r, place in enumerate(places) if r and (place.clock != name or not name)]
    if rank == 0:
        for other in others:
            for trip in range(ROUND_TRIPS):
                key = f"{when}/{other}/{trip}"
                store.get(f"{key}/asked")
                store.set(f"{key}/answer", str(clock()))
    if rank not in others:
        return ClockOffset(0, 0, clock(), "shared clock")
    return offset_of([_ask(store, f"{when}/{rank}/{trip}", clock) for trip in range(ROUND_TRIPS)])


def _ask(store: SealedStore, key: str, clock: Callable[[], int]) -> Exchange:
    sent = clock()
    store.set(f"{key}/asked", "")
    there = int(store.get(f"{key}/answer"))
    return Exchange(sent, there, clock())


def own_address() -> str:
    """Return the address of this host on the interface that gloo is told to use.

    Without such an interface, the loopback address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not interface:
        return "127.0.0.1"
    asked = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)
        except OSError:
            return "127.0.0.1"
    return socket.inet_ntoa(answer[20:24])
