"""Sizes of messages at which a run's links are calibrated."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from scalebench.records.rank import Memory
from scalebench.session.calibration.of_run import PARTS, _sweeps
from scalebench.session.calibration.sweeps import Sweeps, transfers_of
from scalebench.spec import Cell, Ddp, Expert
from scalebench.spec.presets import PRESETS, MoeShape
from tests.builders.runs import make_cell, make_record, make_result

MOE = cast(MoeShape, PRESETS["gpt-moe-tiny"])
PARAMETERS_BYTES = 9_135_104


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
