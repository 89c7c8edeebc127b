"""What a framework does to its process stays in the rank: a stand-in that does all of it."""

import io
import logging
import os
import signal
import socket
import sys

import pytest

from scalebench.worker.process import jobs
from scalebench.worker.process.zygote import Zygote

VARIABLE = "STAND_IN_FRAMEWORK"
LOGGER = "stand_in_framework"


def takes_over_the_process(request):
    os.environ[VARIABLE] = "set"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, force=True)
    logging.getLogger(LOGGER).info("by its logger")
    print("by print")
    os.write(1, b"by its own C code\n")
    os.system("echo by a program that it starts")
    sys.stdout = sys.stderr
    print("by a stream that it replaced")
    return 0


def closes_its_stream(request):
    print("before")
    sys.stdout = io.StringIO()
    sys.stdout.close()
    sys.stderr = None
    return 0


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    stand_ins = {"train": takes_over_the_process, "close": closes_its_stream}
    monkeypatch.setattr(jobs, "_JOBS", stand_ins)
    here, there = socket.socketpair()

    def run(name):
        zygote, log = Zygote(there), tmp_path / "rank0.log"
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):  # as in the zygote, not pytest's
            monkeypatch.setattr(sys, stream, os.fdopen(descriptor, "w", closefd=False))
        zygote.start({"tag": [0, 0], "job": name, "log": str(log), "rank": 0})
        (pid,) = zygote.alive
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, log.read_text()
        zygote.alive.clear()
        return log.read_text()

    with here, there:
        yield run


def test_all_that_a_framework_prints_is_in_the_log_of_its_rank(ranks, capfd):
    log = ranks("train")
    for way in (
        "by its logger",
        "by print",
        "by its own C code",
        "by a program that it starts",
        "by a stream that it replaced",
    ):
        assert way in log, way
    assert capfd.readouterr() == ("", "")
