"""The session's end of a world: what it tells its processes, and what it hears from them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.zygote_client import ZygoteClient
from scalebench.records.storage.secret import VARIABLE
from scalebench.spec.world import WorldMember

WORKER = "scalebench.worker.agent.bridge"


class BridgeClient(ZygoteClient):
    """Writes to processes of a world, and reads what they tell, in one order.

    Clocks of different machines have nothing in common. What a process reports has its own clock's
    time; the shortest delay seen so far from it says how that stands to the clock here, never too
    early, and late by what that message took.

    Attributes:
        members: Process of the world → rank in the launch that is under way, from 0.
        shifts_ns: Process of the world → what its clock is behind the one here.
        forged: What is wrong with a message; empty: nothing was.
    """

    def __init__(self, member: WorldMember, scratch: Path, secret: str) -> None:
        self.rendezvous = member.rendezvous
        self.members: Sequence[int] = ()
        self.shifts_ns: dict[int, int] = {}
        self.forged = ""
        own = scratch / "rank0"
        own.mkdir()
        super().__init__(
            scratch / "bridge.log",
            {"KINETO_LOG_LEVEL": "5", VARIABLE: secret},
            WORKER,
            [member.model_dump_json(), str(own)],
        )

    def write(self, ranks: Sequence[int], message: dict[str, Any]) -> None:
        """Write to processes of the world.

        Raises:
            EnvironmentUnfit: The world is gone.
        """
        self.send({"to": list(ranks), "message": message})

    def signal(self, launch: int, number: int) -> None:
        """Send a signal to every process of a launch that has not ended."""
        self.write(self.members, {"kill": launch, "signal": int(number)})

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, its time on the clock here; None: the time is over.

        Raises:
            EnvironmentUnfit: The world is gone, or another program writes to its store.
        """
        message = None if self.forged else super().next_message(timeout_s)
        if message is not None and "forged" in message:
            self.forged = message["forged"]
        if self.forged:
            place = f"{self.rendezvous.host}:{self.rendezvous.port}"
            raise EnvironmentUnfit(
                f"Another program writes to the store of the ranks, {place}: {self.forged}. "
                "Nothing of it was carried out, and the run ends; results so far are kept."
            )
        if message is None or "from" not in message:
            if message is not None and "lost" in message:
                raise EnvironmentUnfit(
                    "Lost the ranks: their launcher has exited, or their store no longer answers. "
                    "Results so far are kept."
                )
            return message
        sender, shift = message["from"], time.monotonic_ns() - message["now_ns"]
        self.shifts_ns[sender] = min(shift, self.shifts_ns.get(sender, shift))
        if "time_ns" in message:
            message["time_ns"] += self.shifts_ns[sender]
        return message

    def collect(self, kind: str, ranks: Sequence[int], limit_s: float) -> dict[int, Any]:
        """Wait until processes have reported something; return it by process.

        Messages of another ``kind`` are dropped.
        """
        told: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while not told.keys() >= set(ranks):
            message = self.next_message(deadline - time.monotonic())
            if message is None:
                break
            if kind in message:
                told[message["from"]] = message[kind]
        return told
