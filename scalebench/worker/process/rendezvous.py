"""Where the ranks of a launch find one another."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from scalebench.records.paths import LaunchPaths
from scalebench.spec import Job
from scalebench.spec.world import Rendezvous
from scalebench.worker.process.store_queue import open_store


def rendezvous_store(request: dict[str, Any], paths: LaunchPaths, job: Job) -> Path | Store:
    """Return the store of a launch: a file on this machine, or a part of the world's store.

    Args:
        request: ``store`` says where the world's is, and the number of the launch.
        paths: Of the launch.
        job: What is launched.

    Raises:
        StoreUnreachable: The world's store is gone.
    """
    if "store" not in request:
        return paths.store
    launch = request["store"]["launch"]
    rendezvous = Rendezvous.model_validate(
        {k: v for k, v in request["store"].items() if k != "launch"}
    )
    store = open_store(rendezvous, timedelta(seconds=job.limit_s))
    return PrefixStore(f"launch/{launch}", store)
