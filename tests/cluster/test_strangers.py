"""What another user of the machine, or of the network, can do to a world: nothing but end it."""

import json
import os
import re
import shutil
import time
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address

import pytest

from scalebench.records.secret import new_secret
from scalebench.spec.world import Rendezvous
from scalebench.worker.agent.bridge import serve_store
from scalebench.worker.process.store_queue import StoreQueue, open_session, open_store
from tests.builders.runs import make_script_cell
from tests.cluster.conftest import TROUBLED
from tests.conftest import ended
from tests.examples import cases
from tests.forks import forks
from tests.processes import free_ports

RUN = ("run", "ddp", "-k", "static", "--gpus", "2", "--quick", "--no-report", "--out", "r")
PATIENCE = timedelta(seconds=300)
SCRIPTS = TROUBLED.parent / "scripts"


@pytest.fixture
def rendezvous():
    (port,) = free_ports(1)
    return Rendezvous(host="127.0.0.1", port=port, one_node=True, prefix="scalebench/0")


@pytest.fixture
def start(project, rendezvous):
    started = []

    def process(rank, *flags, **variables):
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        told |= {"LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(rendezvous.port)}
        there = {**os.environ, **told, "OMP_NUM_THREADS": "1", **variables}
        started.append(forks().start("scalebench", [*RUN, *flags], project, there))
        return started[-1]

    yield process
    for one in started:
        one.kill()
        one.communicate()


def command(program, launch=90):
    cell = make_script_cell(name="program", program=str(program))
    seat = {"rank": 0, "local_rank": 0, "tag": [launch, 0], "host": "h"}
    return {"start": {"job": "cell", **seat, "description": cell.model_dump_json()}}


@pytest.fixture
def program(tmp_path):
    written = tmp_path / "program.py"
    written.write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    return written


def stranger(store, secret):
    session = store.get("session").decode().split()[0]
    return StoreQueue(store, secret, session, {})


def test_a_command_of_a_stranger_is_refused_and_ends_the_run(start, rendezvous, program):
    first, second = start(0), start(1)
    queue = stranger(open_store(rendezvous, PATIENCE), new_secret())
    end = time.monotonic() + PATIENCE.total_seconds()
    with suppress(RuntimeError):  # the store ends with the run
        for number in range(30):
            queue.send(1, command(program, 90 + number))
        while second.poll() is None and first.poll() is None and time.monotonic() < end:
            queue.send(1, command(program))
            time.sleep(0.1)
    _, said = ended(second, 5, 60)
    assert said.count("scalebench:") == 1 and "is not signed with the secret of this run" in said
    _, told = first.communicate(timeout=60)
    assert first.returncode == 5 and "Traceback" not in said + told
    assert "Another program writes to the store of the ranks" in told
    assert f"127.0.0.1:{rendezvous.port}" in told
    assert not program.with_suffix(".ran").exists()


def test_an_announcement_of_nothing_ends_the_run_as_well(start, rendezvous):
    """Garbage where a message to the session is named: one line, no traceback, no waiting."""
    first, _ = start(0), start(1)
    store = open_store(rendezvous, PATIENCE)
    store.get("session")
    with suppress(RuntimeError):  # the store ends with the run
        for number in range(200):
            store.set(f"from/{number}", "\x00garbage")
    _, told = first.communicate(timeout=PATIENCE.total_seconds())
    assert first.returncode == 5 and "Traceback" not in told, told
    (complaint,) = [line for line in told.splitlines() if not re.search(r": \d+ s: \d+ of", line)]
    assert complaint.startswith("scalebench:") and "names no message" in complaint


def test_one_who_serves_the_store_in_place_of_rank_0_can_start_nothing(start, rendezvous, program):
    """A stranger who has taken the port first; the variables that the user has set do not agree."""
    serve_store(rendezvous)
    theirs = open_session(open_store(rendezvous, PATIENCE), new_secret())
    second = start(1, SCALEBENCH_SECRET=new_secret())
    theirs.numbers[1] = ""
    theirs.send(1, command(program))
    _, told = second.communicate(timeout=PATIENCE.total_seconds())
    assert second.returncode == 5 and "Traceback" not in told, told
    assert "does not have the secret that rank 0 has" in told and "--trust-network" in told
    assert not program.with_suffix(".ran").exists()


def test_a_world_that_trusts_its_network_does_what_it_is_told(start, rendezvous, program):
    serve_store(rendezvous)
    second = start(1, "--trust-network")
    queue = open_session(open_store(rendezvous, PATIENCE), "trusted")
    queue.send(1, command(program))
    told = [queue.sent(number) for number in range(2)]
    assert [told[0] and "hello" in told[0], told[1] and "exited" in told[1]] == [True, True]
    assert program.with_suffix(".ran").exists()
    queue.send(1, {"end": True})
    _, said = second.communicate(timeout=60)
    assert (second.returncode, said) == (0, "")


@cases("own_port", "", "url")
def test_what_serves_a_script_here_listens_on_loopback(scalebench, project, own_port, rendezvous):
    """All that scalebench opens; what a script opens by itself at a port of its own is its own."""
    shutil.copy(SCRIPTS / "listening.py", project)
    words = ("listening.py", *([str(rendezvous.port)] if own_port else []))
    flags = ("--gpus", "2", "--quick", "--no-report", "--no-trace", "--out", "r")
    scalebench("run", *flags, "--", *words, code=0)
    log = (project / "r/logs/listening.script.n2.r0/rank0.log").read_text()
    found = set(json.loads(re.findall(r"^LISTENS (.*)$", log, re.M)[0]))
    assert found and (own_port or all(ip_address(each).is_loopback for each in found)), found
