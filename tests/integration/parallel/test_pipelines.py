"""Every schedule trains what one process trains, and does what its drawing says.

Run as a program, this file is the ranks.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from torch.distributed.pipelining import PipelineStage

from scalebench.costmodel.pipeline_schedule import (
    FROM_TORCH,
    STYLES,
    Action,
    Schedule,
    check,
    plan_schedule,
    why_not,
)
from scalebench.costmodel.pipeline_step import dry_run, equal_times
from scalebench.records.measured.rank import Memory
from scalebench.spec import LayerWise, Pipeline
from scalebench.spec.presets import CnnShape, GptShape, MlpShape, PacedShape
from scalebench.worker.inspection import verify
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.pipelining import ask_torch
from tests.examples import cases
from tests.integration.conftest import SHORT, row_of
from tests.integration.programs import inspecting, looked_at, main, reports_of, verified

DEEP = GptShape(name="deep", layers=7, heads=2, width=16, context=8, batch_size=8)
"""9 layers, the first and the last share the embedding; no number of stages divides them."""
CNN = CnnShape(name="c", depth=8, width=4, image=8, batch_size=8)
MLP = MlpShape(name="m", layers=4, width=8, features=6, batch_size=8)
PACED = PacedShape(name="p", stages=5, stage_parameters=7, sample_s=1e-4, batch_size=8)

REFUSED = "more stages than layers"
SIDE_BY_SIDE = Pipeline(schedule="interleaved-1f1b", chunks=2, data_parallel=2)


def of(strategy, model=DEEP, batch=8):
    return strategy, model, batch


EVERY = {
    name: of(Pipeline(schedule=name, chunks=1 if style.chunks == "one" else 2))
    for name, style in STYLES.items()
} | {"zero-bubble": of(Pipeline(schedule="zero-bubble", chunks=1))}
OF_SIZE = {
    1: {name: EVERY[name] for name in ("1f1b", "interleaved-1f1b", "zero-bubble")},
    2: EVERY
    | {
        "layer by layer": of(LayerWise()),
        "zero-bubble, 2 chunks": of(Pipeline(schedule="zero-bubble", chunks=2)),
        "cnn": of(Pipeline(schedule="1f1b", microbatches=4), CNN),
        "mlp": of(Pipeline(schedule="1f1b", microbatches=4), MLP),
        "paced": of(Pipeline(schedule="zero-bubble", microbatches=4), PACED),
        "even": of(Pipeline(split="even")),
        "checkpointing": of(Pipeline(checkpointing=True)),
        "bf16": of(Pipeline(autocast=True)),
        REFUSED: of(Pipeline(schedule="looped-bfs", chunks=3), PACED),
        "cut by time": of(Pipeline(split="measured")),
    },
    4: {name: EVERY[name] for name in EVERY if name not in ("gpipe", "looped-bfs")}
    | {
        "unbalanced": of(Pipeline(split="unbalanced")),
        "layer by layer, 2 copies": of(LayerWise(size=2), batch=16),
        "2 pipelines": of(SIDE_BY_SIDE, batch=16),
    },
}
CASES = [(size, name) for size, given in OF_SIZE.items() for name in given]

done: list[str] = []
"""Every pass that this rank's stages did, in order, since it was last emptied."""


def noting(kind, method):
    def run(stage, microbatch, *given, **named):
        whole = named.get("full_backward", True)
        done.append(str(Action(stage.stage_index, kind if whole else "I", microbatch)))
        return method(stage, microbatch, *given, **named)

    return run


class NoWatch:
    memory = Memory()
    module = optimizer = None

    def stretch(self, *_, **__):
        return nullcontext()


def train(context):
    done.clear()
    found = verify.inspect(context)
    first_of_three = done[: len(done) // 3]
    told = {"verification": found.verification.model_dump(), "losses": found.losses}
    return told | {"done": first_of_three}


def run_rank(folder, rank, world_size):
    for kind, name in (
        ("F", "forward_one_chunk"),
        ("B", "backward_one_chunk"),
        ("W", "backward_weight_one_chunk"),
    ):
        setattr(PipelineStage, name, noting(kind, getattr(PipelineStage, name)))
    verify.watch_memory = lambda _device: nullcontext(NoWatch())
    cells = {
        name: inspecting(strategy, model, world_size, batch)
        for name, (strategy, model, batch) in OF_SIZE[world_size].items()
    }
    return looked_at(folder, rank, cells, train)


def orders():
    """What torch does in each schedule, number of ranks, of microbatches and of chunks."""
    found = {}
    for name, style in STYLES.items():
        for p in (1, 2, 3, 4):
            for m in (1, 2, 3, 4, 6, 8):
                for v in {"one": (1,), "two": (2,), "any": (1, 2, 3)}[style.chunks]:
                    try:
                        order = [list(map(str, a)) for a in ask_torch(name, p, m, v).ranks]
                    except Unsupported:
                        order = None
                    found[f"{name} {p} {m} {v}"] = order
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def reports(folder):
    return reports_of("parallel.test_pipelines", folder, OF_SIZE)


@pytest.fixture(scope="module")
def torchs_orders(reports, folder):
    return json.loads((folder / "orders.json").read_text())


@cases("world_size, name", *CASES)
def test_a_pipeline_trains_what_one_process_trains(reports, world_size, name):
    found = reports[world_size]
    if name == REFUSED:
        told = f"{3 * world_size} stages need as many layers, and there are 5"
        assert [report[name] for report in found] == [told] * world_size
        return
    verified(found, name, 5e-2 if name == "bf16" else 1e-5)
    losses = found[0][name]["losses"]
    assert losses != losses[::-1], "a loss that stays has learnt nothing"


@cases("world_size, name", *[one for one in CASES if one[1] in STYLES])
def test_what_ran_is_what_is_drawn(reports, torchs_orders, world_size, name):
    pipeline = OF_SIZE[world_size][name][0]
    sizes = (world_size, pipeline.microbatches, pipeline.chunks)
    if name in FROM_TORCH:
        planned = torchs_orders[" ".join(map(str, (name, *sizes)))]
    else:
        planned = [list(map(str, actions)) for actions in plan_schedule(name, *sizes).ranks]
    assert [report[name]["done"] for report in reports[world_size]] == planned


@cases("name", *STYLES)
def test_torch_has_the_same_orders_and_refuses_the_same(torchs_orders, name):
    told = {key: order for key, order in torchs_orders.items() if key.split()[0] == name}
    assert len(told) >= 24
    for key, order in told.items():
        p, m, v = map(int, key.split()[1:])
        assert (order is None) == (why_not(name, p, m, v) is not None), key
        # What torch tells of its 1F1B is not what it runs; the test above has what it runs.
        if order is None or name == "1f1b":
            continue
        schedule = Schedule(name, m, tuple(tuple(map(Action.parse, actions)) for actions in order))
        check(schedule)
        dry_run(schedule, equal_times(p * v))
        assert name in FROM_TORCH or plan_schedule(name, p, m, v) == schedule, key


def test_a_pipelines_memory_is_predicted(scalebench, project):
    cases = "plain or gpipe or 1f1b"
    scalebench("run", "pipeline", "-k", cases, "--gpus", "1,2", *SHORT, "--out", "r", code=0)
    peaks, kept = {}, {}
    for case in ("gpipe", "1f1b", "interleaved-1f1b"):
        for n in (1, 2):
            row = row_of(project / "r", case, n)
            peaks[case, n] = row["peak_memory_bytes"]
            assert row["predicted_memory_bytes"] == pytest.approx(peaks[case, n], rel=0.06)
            kept[case, n] = row["memory"]["activations_bytes"]
    # What the schedules promise: all four microbatches, against as many as there are ranks.
    assert kept["1f1b", 2] < 0.55 * kept["gpipe", 2]
    assert peaks["1f1b", 2] < peaks["gpipe", 2]


if __name__ == "__main__":
    (Path(sys.argv[1]) / "orders.json").write_text(json.dumps(orders()))
    main(run_rank)
