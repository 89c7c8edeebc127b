"""How long rank 0 waits for what many ranks have recorded, over the store by which they meet.

The ranks are threads that play ranks, so many to a process, each with a connection and a record of
its own, which it sends when all are told to; they do not train. ``python -m benchmarks.gather
--ranks 1024 --steps 200``; the measure is the time from that word to the last record, read and
checked against its schema.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from scalebench.launch.environment import port_of
from scalebench.records.measured.rank import RankRecord
from scalebench.spec.world import Rendezvous
from scalebench.worker.agent.bridge import serve_store
from scalebench.worker.process.store_queue import join_session, open_session, open_store
from tests.builders.runs import make_record

LIMIT = timedelta(seconds=120)
SECRET = "of the benchmark"
RANKS_PER_PROCESS = 64


def record_of(rank: int, num_steps: int) -> RankRecord:
    """Return what a rank might have recorded."""
    steps = [0.01 + 1e-7 * ((rank * 7919 + i * 104729) % 99991) for i in range(num_steps)]
    return make_record(rank, step_s=steps, loss=[1.0 / (1 + i) for i in range(num_steps)])


def be_rank(rendezvous: Rendezvous, rank: int, num_steps: int) -> None:
    """Wait for the word and send the record."""
    queue = join_session(open_store(rendezvous, LIMIT), rank, lambda: [SECRET], 60.0)
    text = record_of(rank, num_steps).model_dump_json()
    queue.tell(rank, {"ready": rank})
    queue.received(rank, 0)
    queue.tell(rank, {"exited": [1, rank], "code": 0, "record": text})


def fork_ranks(rendezvous: Rendezvous, ranks: range, num_steps: int) -> int:
    """Start a process whose threads play these ranks; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            with ThreadPoolExecutor(len(ranks)) as threads:
                list(threads.map(lambda rank: be_rank(rendezvous, rank, num_steps), ranks))
        finally:
            os._exit(0)
    return pid


def gather(num_ranks: int, num_steps: int) -> tuple[list[RankRecord], float]:
    """Return the records by rank, and the seconds that it took to have them all."""
    port = port_of(f"gather {os.getpid()}")
    rendezvous = Rendezvous(host="127.0.0.1", port=port, one_node=True, prefix="gather")
    serve_store(rendezvous)
    queue = open_session(open_store(rendezvous, LIMIT), SECRET)
    children = [
        fork_ranks(rendezvous, range(first, min(first + RANKS_PER_PROCESS, num_ranks)), num_steps)
        for first in range(0, num_ranks, RANKS_PER_PROCESS)
    ]
    for number in range(num_ranks):
        queue.sent(number)
    began = time.perf_counter()
    for rank in range(num_ranks):
        queue.send(rank, {"end": True})
    told = [queue.sent(num_ranks + number) for number in range(num_ranks)]
    records = [RankRecord.model_validate_json(message["record"]) for message in told if message]
    took_s = time.perf_counter() - began
    for pid in children:
        os.waitpid(pid, 0)
    return sorted(records, key=lambda record: record.rank), took_s


def main() -> None:
    """Gather once and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    records, took_s = gather(asked.ranks, asked.steps)
    whole = [r.step_s == record_of(r.rank, asked.steps).step_s for r in records]
    print(json.dumps({"records": len(records), "whole": sum(whole), "took_s": took_s}))


if __name__ == "__main__":
    main()
