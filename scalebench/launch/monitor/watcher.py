"""Watch GPUs from a process of one's own, on behalf of one that must not touch a driver.

``python -m scalebench.launch.monitor.watcher``: the first line that it reads is JSON, the UUIDs of
the GPUs and the launch's processes; with the next, or the end of the input, it ends, and writes
what it has seen as a `NodeTrack`.
"""

import json
import os
import signal
import sys

from scalebench.launch.monitor.sampler import DeviceSampler


def main() -> None:
    """Watch from the first line to the second."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the ranks: their end is the end
    asked = json.loads(sys.stdin.readline())
    sampler = DeviceSampler(asked["uuids"], family=asked["family"])
    sampler.start()
    sys.stdin.readline()
    print(sampler.result().model_dump_json(), flush=True)
    os._exit(0)  # whether or not the driver has answered


if __name__ == "__main__":
    main()
