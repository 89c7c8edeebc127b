"""Sizes of messages at which a run's links are calibrated."""

from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

from scalebench.costmodel.tensor_layers import DividedModel, model_of_preset
from scalebench.records.rank import Memory
from scalebench.session.calibration.of_run import PARTS, _asked_sweeps, _largest_bytes, _sweeps
from scalebench.session.calibration.sweeps import Sweeps, transfers_of
from scalebench.spec import Cell, Collectives, Ddp, Expert, Tensor
from scalebench.spec.presets import PRESETS, CustomTarget, GptShape, MoeShape
from tests.builders.runs import make_cell, make_record, make_result

GPT = GptShape(name="one", layers=1, heads=8, width=64, context=64, batch_size=64)
OWN = CustomTarget(name="mine:gpt", module="mine", function="gpt", batch_size=64)
MOE = cast(MoeShape, PRESETS["gpt-moe-tiny"])
PARAMETERS_BYTES = 9_135_104
ACTIVATIONS_BYTES = 4 * 64 * 64 * 64


def facts_of(model: DividedModel) -> dict[str, Any]:
    return {
        "divided_layers": [asdict(layer) for layer in model.layers],
        "divided_samples": model.samples,
        "divided_logits": model.divides_logits,
        "parameters": [list(one) for one in model.parameters],
    }


def largest_bytes(facts: dict[str, Any]) -> int:
    strategy = Tensor(sequence=True, loss=True)
    cell = make_cell(world_size=8, strategy=strategy, workload=OWN, global_batch=64, rank_batch=64)
    inspection = cell.model_copy(update={"purpose": "inspect"})
    result = make_result(inspection, ranks=[make_record(r, facts=facts) for r in range(8)])
    stored = SimpleNamespace(results={inspection.id: result})
    return _largest_bytes(cell, "all_gather", stored)  # type: ignore[arg-type]


def of_run(cells: Sequence[Cell]) -> Sweeps:
    """Return what a run of cells calibrates that have been inspected."""
    spec = SimpleNamespace(device="cpu", virtual_hosts=None, pinned=False)
    inspections = [cell.model_copy(update={"purpose": "inspect"}) for cell in cells]
    memory = Memory(parameters_bytes=PARAMETERS_BYTES)
    ranks = [make_record(r).model_copy(update={"memory": memory}) for r in range(2)]
    results = {cell.id: make_result(cell, ranks=ranks) for cell in inspections}
    return _sweeps(cells, SimpleNamespace(results=results, info=SimpleNamespace(spec=spec)))  # type: ignore[arg-type]


def test_each_operation_is_timed_up_to_what_its_own_strategies_send() -> None:
    """Tokens on their way to experts are small beside all gradients in one bucket."""
    settings = {"world_size": 2, "workload": MOE, "global_batch": 16, "rank_batch": 8}
    cells = [
        make_cell("ddp", strategy=Ddp(), **settings),
        make_cell("expert", strategy=Expert(), **settings),
    ]
    sweeps = of_run(cells)
    largest = {op: sizes[-1] for op, sizes in sweeps.sizes.items()}
    assert not sweeps.pinned, "as the run's ranks are"
    assert largest["all_reduce"] == PARAMETERS_BYTES
    assert largest["all_to_all"] == 4 * MOE.width * MOE.top_k * MOE.context * 8
    planned = transfers_of(sweeps)
    assert len(planned) == 2 * len(PARTS)
    assert {(t.operation, t.size_bytes) for t in planned} == {
        (op, size // part) for op, size in largest.items() for part in PARTS
    }


def test_activations_of_a_users_own_model_are_calibrated_as_its_inspected_steps_show_them() -> None:
    shown = facts_of(model_of_preset(GPT, 64, sequence=True))
    assert largest_bytes(shown) == ACTIVATIONS_BYTES


def test_where_no_step_has_shown_them_the_parameters_are_the_largest_message() -> None:
    assert largest_bytes({}) < ACTIVATIONS_BYTES


def test_a_suite_of_collectives_times_ranks_that_are_placed_as_the_run_says() -> None:
    for pinned in (True, False):
        spec = SimpleNamespace(
            device="cpu", virtual_hosts=None, pinned=pinned, world_sizes=(1, 2, 4)
        )
        info = SimpleNamespace(spec=spec, environment={"devices": []})
        asked = _asked_sweeps([Collectives()], [], SimpleNamespace(info=info))  # type: ignore[arg-type]
        assert (asked.world_sizes, asked.pinned) == ((2, 4), pinned)
