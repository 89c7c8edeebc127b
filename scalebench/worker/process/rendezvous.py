"""Where the ranks of a launch find one another."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from scalebench.records.paths import LaunchPaths
from scalebench.records.secret import seal, unseal
from scalebench.spec import Job
from scalebench.spec.world import Rendezvous
from scalebench.worker.process.store_queue import open_store


def rendezvous_store(request: dict[str, Any], paths: LaunchPaths, job: Job) -> Path | Store:
    """Return the store of a launch: a file on this machine, or a part of the world's store.

    Args:
        request: ``store`` has the world's ``rendezvous`` and the number of the ``launch``.
        paths: Of the launch.
        job: What is launched.

    Raises:
        StoreUnreachable: The world's store is gone.
    """
    if "store" not in request:
        return paths.store
    told = request["store"]
    rendezvous = Rendezvous.model_validate(told["rendezvous"])
    store = open_store(rendezvous, timedelta(seconds=job.limit_s))
    return PrefixStore(f"launch/{told['launch']}", store)


class SealedStore:
    """What the ranks of a launch tell one another: values that only they can have written.

    Args:
        store: Of the launch.
        key: Of the launch; see `StoreQueue.launch_key`. Empty: nobody else can write to the store.
    """

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key

    def set(self, name: str, text: str) -> None:
        """Write a value."""
        self.store.set(name, seal(self.key, name, text))

    def get(self, name: str) -> str:
        """Wait for a value and return it.

        Raises:
            Forged: No rank of this launch has written it.
        """
        return unseal(self.key, name, self.store.get(name))
