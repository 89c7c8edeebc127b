import sys
import sysconfig
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.spec.presets import PRESETS, CnnShape, CustomTarget, GptShape
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.batches import ResidentBatches
from scalebench.worker.workloads.classifiers import Cnn, Mlp
from scalebench.worker.workloads.loaded import Paced
from scalebench.worker.workloads.transformers import Gpt, MoeGpt
from tests.examples import cases, examples

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHARD = Shard(0, 1, 4, 0, CPU)
MODULES = {"gpt": Gpt, "gpt-moe": MoeGpt, "cnn": Cnn, "mlp": Mlp, "paced": Paced}


def resident(num_samples, batch_size, rank=0, world_size=1, seed=0):
    shard = Shard(rank, world_size, batch_size, seed, CPU)
    return ResidentBatches("w", num_samples, shard, lambda index: (index, index))


@cases("name", *PRESETS)
def test_every_preset_has_the_parameters_that_the_catalog_says(name):
    spec = PRESETS[name]
    with torch.device("meta"):
        module = MODULES[spec.kind](spec)
    assert sum(p.numel() for p in module.parameters()) == spec.num_parameters


@cases("folder", "empty", "missing")
def test_missing_sources_are_told_with_a_remedy(tmp_path, monkeypatch, folder):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / folder)})
    with pytest.raises(EnvironmentUnfit, match=rf"{folder}.*another workload \(cnn, mlp\)"):
        build_workload(PRESETS["gpt-tiny"], SHARD)


DIVISIBLE = st.tuples(st.integers(1, 24), st.integers(0, 60), st.integers(0, 3))


@settings(max_examples=examples(60))
@given(DIVISIBLE, st.integers(0, 2**32), st.integers(0, 5))
def test_every_world_size_trains_on_the_same_global_batches(sizes, seed, epoch):
    global_batch, extra, whole = sizes
    num_samples = global_batch * (1 + whole) + extra
    steps = num_samples // global_batch
    expected = None
    for world_size in (n for n in range(1, global_batch + 1) if global_batch % n == 0):
        of_rank = global_batch // world_size
        orders = [
            resident(num_samples, of_rank, rank, world_size, seed).epoch_order(epoch)
            for rank in range(world_size)
        ]
        together = torch.cat(orders, dim=1)  # [steps, global_batch]
        assert together.shape == (steps, global_batch)
        assert together.unique().numel() == together.numel()  # nothing is seen twice
        assert 0 <= together.min() <= together.max() < num_samples
        batches = [set(step) for step in together.tolist()]
        expected = expected or batches
        assert batches == expected


@settings(max_examples=examples(30))
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 100), st.integers(0, 1000))
def test_order_is_that_of_distributed_sampler(world_size, batch_size, extra, seed):
    num_samples = world_size * batch_size + extra
    for rank in range(world_size):
        sampler = DistributedSampler(
            range(num_samples), world_size, rank, shuffle=True, seed=seed, drop_last=True
        )
        batches = resident(num_samples, batch_size, rank, world_size, seed)
        whole = num_samples // (world_size * batch_size) * batch_size
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs += list(sampler)[:whole]
        got = [index for batch, _ in islice(batches, len(epochs) // batch_size) for index in batch]
        assert got == epochs


WIDE = GptShape(name="g", layers=1, heads=3, width=8, context=8, batch_size=4)
DEEP = CnnShape(name="c", depth=10, batch_size=4)


@cases(
    "build, message",
    (lambda: resident(10, 2, 0, 6), r"w has 10 samples.*batch of 12 \(6 ranks with 2 each\)"),
    (lambda: build_workload(DEEP, SHARD), "6n \\+ 2, and 10 is not. Choose 8 or 14"),
    (lambda: build_workload(WIDE, SHARD), "3 heads do not divide the width 8"),
)
def test_what_contradicts_itself_is_a_usage_error(build, message):
    resident(10, 2, 0, 5)
    with pytest.raises(UsageError, match=message):
        build()


HEAD = "import torch\nfrom scalebench import Shard, Workload\nlinear = torch.nn.Linear(2, 1)\n"


@pytest.fixture
def custom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)

    def write_and_build(source):
        (tmp_path / "mine.py").write_text(HEAD + source)
        spec = CustomTarget(name="mine:workload", module="mine", function="workload")
        return build_workload(spec, SHARD)

    yield write_and_build
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]


def returning(workload):
    return f"def workload(shard):\n    return {workload}\n"


CUSTOM_ERRORS = {
    "syntax": ("def workload(:\n", r"'mine' cannot be imported \(SyntaxError: .*mine\.py, line 4"),
    "no function": (
        "from os.path import join\ndef worklaod(shard): ...\ndef _hidden(): ...\n",
        r"no mine function 'workload'\. Did you mean 'worklaod'\? Valid: worklaod\.$",
    ),
    "not callable": ("workload = {}\n", r"'workload' is a dict, which cannot be called"),
    "no parameters": (
        "def workload(): ...\n",
        r"raised TypeError: workload\(\) takes 0 .* \(\S+/mine\.py\)\. The function is called with",
    ),
    "None": ("def workload(shard): ...\n", r"returned None, not a scalebench\.Workload\. Return"),
    "module": (returning("Workload('linear', [1], max)"), r"whose module is a str\. It must be"),
    "blocks": (returning("Workload(linear, [1], max, blocks=[1])"), r"whose blocks is a list\."),
    "spent": (returning("Workload(linear, iter(()), max)"), r"whose batches are empty"),
    "bad batches": (
        returning("Workload(linear, (1 / n for n in [0]), max)"),
        r"could not make its first batch: ZeroDivisionError: .* \(\S+/mine\.py:5\)",
    ),
}


@cases("case", *CUSTOM_ERRORS)
def test_custom_error_is_one_line_that_says_what_to_do(custom, case):
    source, message = CUSTOM_ERRORS[case]
    with pytest.raises(UsageError, match=message) as caught:
        custom(source)
    assert "\n" not in str(caught.value)
    assert "mine" in str(caught.value)


@cases("error", "MemoryError", "torch.OutOfMemoryError")
def test_custom_workload_out_of_memory_is_not_a_usage_error(custom, error):
    with pytest.raises((MemoryError, torch.OutOfMemoryError)):
        custom(f"def workload(shard):\n    raise {error}\n")
