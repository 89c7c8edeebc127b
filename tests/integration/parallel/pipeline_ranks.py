"""Ranks that train in every kind of pipeline, over gloo: run as a program by `test_pipelines`."""

import json
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch.distributed.pipelining import PipelineStage

from scalebench.costmodel.pipelines.orders import STYLES
from scalebench.costmodel.pipelines.schedule import Action
from scalebench.records.measured.rank import Memory
from scalebench.worker.inspection import verify
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.pipelining.schedule import ask_torch
from tests.integration.parallel.pipeline_cases import cases
from tests.integration.programs import looked_at, main

done: list[str] = []
"""Every pass that this rank's stages did, in order, since it was last emptied."""


def noting(kind, method):
    def run(stage, microbatch, *given, **named):
        whole = named.get("full_backward", True)
        done.append(str(Action(stage.stage_index, kind if whole else "I", microbatch)))
        return method(stage, microbatch, *given, **named)

    return run


@contextmanager
def watched():
    kept = {}
    for kind, name in (
        ("F", "forward_one_chunk"),
        ("B", "backward_one_chunk"),
        ("W", "backward_weight_one_chunk"),
    ):
        kept[name] = getattr(PipelineStage, name)
        setattr(PipelineStage, name, noting(kind, kept[name]))
    yield
    for name, method in kept.items():
        setattr(PipelineStage, name, method)


class NoWatch:
    memory = Memory()
    module = optimizer = None

    def stretch(self, *_, **__):
        return nullcontext()


verify.watch_memory = lambda _device: nullcontext(NoWatch())


def train(context):
    done.clear()
    found = verify.inspect(context)
    first_of_three = done[: len(done) // 3]
    return found.verification.model_dump() | {"losses": found.losses, "done": first_of_three}


def run_rank(folder, rank, world_size):
    with watched():
        return looked_at(folder, rank, cases(world_size), train)


def orders():
    found: dict[str, Any] = {}
    for name, style in STYLES.items():
        for p in (1, 2, 3, 4):
            for m in (1, 2, 3, 4, 6, 8):
                for v in {"one": (1,), "two": (2,), "any": (1, 2, 3)}[style.chunks]:
                    key = f"{name} {p} {m} {v}"
                    try:
                        order = ask_torch(name, p, m, v)
                        found[key] = [list(map(str, actions)) for actions in order.ranks]
                    except Unsupported:
                        found[key] = None
    return found


if __name__ == "__main__":
    (Path(sys.argv[1]) / "orders.json").write_text(json.dumps(orders()))
    main(run_rank)
