"""The process from which ranks are forked, with torch already imported.

A fresh interpreter needs seconds to import torch; a fork of this one starts a rank in
milliseconds. It talks to the launcher over a socket in lines of JSON::

    launcher → zygote   {"start": {"tag": [launch, rank], …}}   fork a process for a job
                        {"kill": launch, "signal": 9}   signal the processes of a launch
    zygote → launcher   {"ready": pid}
                        {"exited": tag, "code": …, "time_ns": …}   code < 0: minus the signal
                        {"refused": tag, "reason": …, "time_ns": …}   it could not be forked

The standard library's forkserver is not used because it runs the caller's main module again in
every child, is one per process, and tells neither order nor time of exits. This process never
runs an operator of torch: it has none of its threads and no CUDA context when it forks. It ends
with the launcher, and the ranks die with it: see `die_with_parent`; end of file on the socket is
the second line of defence. What the ranks have started, and left behind, is adopted and ended.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # torch makes no garbage while it is imported: a fifth of its time

import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from scalebench.machine import OutOfMemoryWatch
from scalebench.records.files import Channel
from scalebench.worker.process import jobs, token
from scalebench.worker.process.setup import die_with_parent


class Zygote:
    """Forks on request, reaps, and tells the launcher what ended when.

    Attributes:
        alive: pid → tag of the processes that have not been reaped.
        own: Other children of this process, which stay.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.channel = Channel(connection)
        self.alive: dict[int, list[int]] = {}
        self.own: set[int] = set()
        self.memory = OutOfMemoryWatch()

    def serve(self) -> None:
        """Answer requests until the launcher hangs up; then end what is left."""
        token.adopt_orphans()
        self.own = {process.pid for process in token.descendants()}
        try:
            self._answer()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            token.end_descendants(self.own)

    def _answer(self) -> None:
        child_ended, wake = socket.socketpair()
        child_ended.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.tell(self.greeting())
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            selector.register(child_ended, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is child_ended:
                        child_ended.recv(4096)
                        self.reap()
                    elif not self.receive():
                        return

    def greeting(self) -> dict[str, Any]:
        """Return what is told first: that requests are heard."""
        return {"ready": os.getpid()}

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message to the launcher."""
        self.channel.send(message)

    def receive(self) -> bool:
        """Act on what has arrived; return False when the launcher has hung up."""
        requests = self.channel.receive()
        return requests is not None and all([self.act(request) for request in requests])

    def act(self, request: dict[str, Any]) -> bool:
        """Do what one request asks for; return False when it was the last one."""
        if "start" in request:
            self.start(request["start"])
        else:
            self.kill(request["kill"], request["signal"])
        return True

    def start(self, request: dict[str, Any]) -> None:
        """Fork a process for one job."""
        zygote = os.getpid()
        if not self.alive:
            self.memory = OutOfMemoryWatch()
        try:
            pid = os.fork()
        except OSError as error:
            refusal = {"refused": request["tag"], "reason": str(error)}
            self.tell({**refusal, "time_ns": time.monotonic_ns()})
            return
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                self.channel.close()
                die_with_parent(zygote)
                code = jobs.run(request)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # whatever happens, never return into the zygote's own loop
        self.alive[pid] = request["tag"]

    def kill(self, launch: int, number: int) -> None:
        """Send a signal to a launch that has not ended: one that ends it to all below this process.

        Which ranks are stopped is told first: they do not answer.
        """
        ranks = {pid: tag for pid, tag in self.alive.items() if tag[0] == launch}
        below = token.descendants(self.own) if ranks else []
        for process in filter(token.is_stopped, below):
            rank = token.above(process, ranks)
            if rank is not None:
                self.tell({"stopped": ranks[rank], "pid": process.pid})
        if number in (signal.SIGTERM, signal.SIGKILL):
            token.signal_all(below, number)
        else:
            for pid in ranks:
                os.kill(pid, number)

    def reap(self) -> None:
        """Collect every child that has ended and tell the launcher.

        What the ranks of a launch have left behind ends before that of the last one is told, and is
        collected as well: until then the kernel does not count its time as this process's.
        """
        messages = [
            self.exit_message(tag, os.waitstatus_to_exitcode(status))
            for pid, status in ended_children()
            if (tag := self.alive.pop(pid, None)) is not None
        ]
        if messages and not self.alive:
            token.end_descendants(self.own)
            list(ended_children())
        for message in messages:
            self.tell(message)

    def exit_message(self, tag: list[int], code: int) -> dict[str, Any]:
        """Return what is told of a process that has ended."""
        message = {"exited": tag, "code": code, "time_ns": time.monotonic_ns()}
        out_of_memory = self.memory.killed() if code else None
        return message | ({"out_of_memory": out_of_memory} if out_of_memory else {})


def ended_children() -> Iterator[tuple[int, int]]:
    """Collect the children that have ended: pid and status."""
    with suppress(ChildProcessError):  # none is left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def freeze_objects() -> None:
    """Have no collection in a rank walk, and copy, the objects that it inherits."""
    gc.collect()
    gc.freeze()
    gc.enable()


def main(arguments: list[str]) -> None:
    """Serve on the file descriptor given as first argument; the second is the launcher's pid.

    A launcher that is not the main thread of its process passes 0: the kernel would take the end
    of that thread for the end of the launcher.
    """
    descriptor, parent = (int(argument) for argument in arguments)
    launcher = os.getppid()

    def end_if_orphaned(*_: object) -> None:
        if os.getppid() != launcher:  # otherwise the launcher decides
            raise SystemExit(128 + signal.SIGTERM)

    if parent:
        die_with_parent(parent)
    jobs.preload()
    freeze_objects()
    signal.signal(signal.SIGTERM, end_if_orphaned)
    if parent:
        die_with_parent(parent, signal.SIGTERM)  # from here on there are ranks to be ended first
    with suppress(BrokenPipeError, ConnectionResetError):  # the launcher is gone; so are we
        Zygote(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
