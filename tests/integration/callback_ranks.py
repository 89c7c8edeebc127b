"""A rank whose communication hook begins a collective in the callback of another: traced steps."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from scalebench.trace.classify import timeline_of
from scalebench.worker.measure.tracing import traced

NUM_STEPS = 3


def main(rank: int, folder: Path) -> None:
    """Trace steps of three all-reduces, of which two begin in callbacks; write what was seen."""
    store = dist.FileStore(os.fspath(folder / "store"), 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    data = [torch.ones(256 * n) for n in (1, 2, 3)]

    def reduce(which: int) -> torch.futures.Future[torch.Tensor]:
        return dist.all_reduce(data[which], async_op=True).get_future()

    def step() -> None:
        first = reduce(0)
        second = first.then(lambda _: reduce(1).wait())
        second.then(lambda _: reduce(2).wait()).wait()

    step()
    dist.barrier()
    with traced(torch.device("cpu")) as capture:
        for _ in range(NUM_STEPS):
            with capture.step():
                step()
    dist.barrier()
    seen = [(op.kind, op.num_bytes) for op in timeline_of(capture.events).operations]
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
