"""Every schedule trains what one process trains, and does what its drawing says."""

import json

import pytest

from scalebench.costmodel.pipelines.dry_run import dry_run, equal_times
from scalebench.costmodel.pipelines.orders import FROM_TORCH, STYLES, plan_schedule, why_not
from scalebench.costmodel.pipelines.schedule import Action, Schedule, check
from tests.examples import cases
from tests.integration.conftest import SHORT, row_of
from tests.integration.parallel.pipeline_cases import cases as of_size
from tests.integration.programs import reports_of

WORLD_SIZES = (1, 2, 4)
CASES = [(size, name) for size in WORLD_SIZES for name in of_size(size)]
REFUSED = "more stages than layers"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")
    found = reports_of("parallel.pipeline_ranks", folder, WORLD_SIZES)
    told = {f"{size}-{rank}": one for size in found for rank, one in enumerate(found[size])}
    return told | {"orders": json.loads((folder / "orders.json").read_text())}


@cases("world_size, name", *CASES)
def test_a_pipeline_trains_what_one_process_trains(reports, world_size, name):
    found = [reports[f"{world_size}-{rank}"][name] for rank in range(world_size)]
    if name == REFUSED:
        stages = 3 * world_size
        told = f"{stages} stages need as many layers, and there are 5"
        assert found == [told] * world_size
        return
    tolerance = 5e-2 if name == "bf16" else 1e-5
    for one in found:
        assert one["status"] == "verified", one["reason"]
    assert 0 <= found[0]["gradient_deviation"] < tolerance
    assert found[0]["loss_deviation"] < tolerance
    assert found[0]["losses"] != found[0]["losses"][::-1], "a loss that stays has learnt nothing"


@cases("world_size, name", *[one for one in CASES if one[1] in STYLES])
def test_what_ran_is_what_is_drawn(reports, world_size, name):
    pipeline = of_size(world_size)[name].strategy
    sizes = (world_size, pipeline.microbatches, pipeline.chunks)
    if name in FROM_TORCH:
        planned = reports["orders"][" ".join(map(str, (name, *sizes)))]
    else:
        planned = [list(map(str, actions)) for actions in plan_schedule(name, *sizes).ranks]
    assert [reports[f"{world_size}-{rank}"][name]["done"] for rank in range(world_size)] == planned


@cases("name", *STYLES)
def test_torch_has_the_same_orders_and_refuses_the_same(reports, name):
    told = {key: order for key, order in reports["orders"].items() if key.split()[0] == name}
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
