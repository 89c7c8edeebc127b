"""What an inspecting launch brings home, at one rank in this process; predictions held to it."""

import pytest

from scalebench.spec import Cell, Ddp, Plain, StepPlan
from scalebench.spec.presets import PRESETS
from scalebench.worker.inspection.allocations import CATEGORIES
from scalebench.worker.inspection.verify import inspect
from scalebench.worker.process.context import connected

GPT = PRESETS["gpt-tiny"]
FLOPS = 64 * (6 * (2 * 12 * 128**2 + 256 * 128) + 12 * 2 * 128 * 64)
"""PaLM, appendix B: two layers, width 128, vocabulary 256, 64 tokens."""


def inspected(tmp_path, strategy, batch=16):
    cell = Cell(
        suite="x",
        case="y",
        strategy=strategy,
        workload=GPT,
        scaling="strong",
        world_size=1,
        global_batch=batch,
        rank_batch=batch,
        device="cpu",
        backend=None if strategy.kind == "plain" else "gloo",
        threads=1,
        purpose="inspect",
        steps=StepPlan(),
    )
    with connected(cell, 0, tmp_path / f"store-{strategy.kind}-{batch}") as context:
        return inspect(context)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return inspected(tmp_path_factory.mktemp("plain"), Plain())


def test_plain(plain):
    memory = plain.memory
    assert plain.verification.status == "reference"
    assert sum(getattr(memory, f"{name}_bytes") for name in CATEGORIES) == memory.allocated_bytes
    assert memory.parameters_bytes == 4 * GPT.num_parameters
    assert memory.optimizer_bytes == pytest.approx(8 * GPT.num_parameters, abs=2000)
    assert memory.communication_bytes == 0
    assert memory.data_bytes > 1_000_000  # the corpus
    assert plain.flops.total == FLOPS


def test_recomputation_is_no_model_flop(tmp_path, plain):
    """Under DDP the reference is counted, which does not recompute; plain that does is not."""
    found = inspected(tmp_path, Ddp(checkpointing=True))
    assert found.verification.status == "verified"
    assert found.flops.total == FLOPS
    assert found.memory.activations_peak_bytes < 0.7 * plain.memory.activations_peak_bytes
    assert inspected(tmp_path, Plain(checkpointing=True)).flops is None
