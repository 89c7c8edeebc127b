"""What a suite asks about recovery: how to save, how often to try, where checkpoints go."""

from typing import Literal

from pydantic import Field

from scalebench.spec.base import Spec

SaveMethod = Literal["full", "sharded", "async", "async-pinned"]

SAVE_METHODS: dict[SaveMethod, str] = {
    "full": "rank 0 gathers everything and calls torch.save",
    "sharded": "torch.distributed.checkpoint: each rank writes its part",
    "async": "the same in the background, after a copy to host memory",
    "async-pinned": "the same, and the copy goes to page-locked memory (CUDA only)",
}


class Recovery(Spec):
    """What checkpoints cost, and whether a run continues from them.

    Attributes:
        methods: Ways to save, all of them tried in one launch by turns.
        saves: Timed saves of each method; one more comes first and does not count.
        steps: Steps before each save, and at least as many after it.
        directory: Where checkpoints go; None: into the run folder. They are removed when the run is
            complete.
    """

    methods: tuple[SaveMethod, ...] = Field(("full", "sharded", "async"), min_length=1)
    saves: int = Field(5, ge=2)
    steps: int = Field(4, ge=2)
    directory: str | None = None
