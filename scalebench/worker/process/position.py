"""How far a rank has come, told by itself when it is asked, even while it hangs.

A rank that waits in a collective cannot be asked through its training loop. A thread that sleeps
until a signal comes can: it counts the collectives that this rank has called. The rank that the
others wait for has called fewer.
"""

import faulthandler
import signal
import socket
import threading
from pathlib import Path

import torch.distributed as dist

ASKED = signal.SIGUSR1


def answer_when_asked(answer: Path) -> None:
    """Have `ASKED` write the stacks of all threads to the log, and the position to a file.

    The thread sleeps in the kernel until then: it costs the training nothing.

    Args:
        answer: Gets the number of collectives, in decimal digits.
    """
    heard, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(ASKED, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    faulthandler.register(ASKED, all_threads=True, chain=True)

    def listen() -> None:
        while True:
            numbers = heard.recv(64)
            if not numbers:
                return
            if ASKED in numbers:
                answer.write_text(str(num_collectives()))

    threading.Thread(target=listen, name="position", daemon=True).start()
    _open_ends.append((heard, wake))


_open_ends: list[tuple[socket.socket, socket.socket]] = []
"""What has to stay open for the rest of the process's life."""


def num_collectives() -> int:
    """Return how many collectives this process has called in groups that hold every rank."""
    if not dist.is_initialized():
        return 0
    groups = [g for g in dist.distributed_c10d._world.pg_map if g.size() == dist.get_world_size()]
    numbers = (g._get_sequence_number_for_group() for g in groups)  # type: ignore[attr-defined]
    return sum(numbers)
