"""Sizes of messages at which a run's links are calibrated."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from scalebench.costmodel.tensor_layers import DividedModel, model_of_preset
from scalebench.session.calibration.of_run import _largest_bytes
from scalebench.spec import Tensor
from scalebench.spec.presets import CustomTarget, GptShape
from tests.builders.runs import make_cell, make_record, make_result

GPT = GptShape(name="one", layers=1, heads=8, width=64, context=64, batch_size=64)
OWN = CustomTarget(name="mine:gpt", module="mine", function="gpt", batch_size=64)
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
    return _largest_bytes(cell, SimpleNamespace(results={inspection.id: result}))  # type: ignore


def test_activations_of_a_users_own_model_are_calibrated_as_its_inspected_steps_show_them() -> None:
    shown = facts_of(model_of_preset(GPT, 64, sequence=True))
    assert largest_bytes(shown) == ACTIVATIONS_BYTES


def test_where_no_step_has_shown_them_the_parameters_are_the_largest_message() -> None:
    assert largest_bytes({}) < ACTIVATIONS_BYTES
