"""The loader's specification, its way through the plan, and the batches it serves."""

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.errors import UsageError
from scalebench.session.plan import Machine, Plan, Request, check_names, make_plan
from scalebench.spec import Case, Ddp, Loader, Plain, Suite
from scalebench.spec.presets import PRESETS
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.loaded import LoadedBatches
from scalebench.worker.workloads.order import ResidentBatches
from tests.examples import examples

CPU = torch.device("cpu")
INLINE = Loader()
WITH_WORKERS = Loader(num_workers=2, prefetch_factor=4, persistent_workers=True)
FED = Case(name="fed", strategy=Ddp(), loader=WITH_WORKERS)


def suite_of(*cases: Case, workload: str = "mlp-tiny") -> Suite:
    return Suite(name="s", question="?", cases=cases, workload=workload)


def plan_of(*cases: Case, **request: str) -> Plan:
    machine = Machine(num_gpus=0, num_cores=2)
    return make_plan(Request(world_sizes=(1, 2), **request), [suite_of(*cases)], machine)


def baseline_cases(plan: Plan) -> list[tuple[str, Loader | None]]:
    plain = [c for c in plan.cells if c.strategy.kind == "plain" and c.purpose == "inspect"]
    return [(cell.case, cell.loader) for cell in plain]


# --- specification


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"prefetch_factor": 2}, "prefetch_factor is for worker processes.*num_workers"),
        ({"persistent_workers": True}, "persistent_workers is for worker processes.*num_workers"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
        ({"workers": 1}, "workers"),
    ],
)
def test_a_loader_that_contradicts_itself_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Loader(**fields)


def test_defaults_are_those_of_the_dataloader():
    theirs = torch.utils.data.DataLoader([0])
    assert {name: getattr(theirs, name) for name in Loader.model_fields} == Loader().model_dump()


# --- plan


def test_the_baseline_is_resident_unless_a_plain_case_has_the_same_loader():
    assert baseline_cases(plan_of(FED)) == [("plain", None)]
    other = Case(name="plain-inline", strategy=Plain(), loader=INLINE, optional=True)
    assert baseline_cases(plan_of(other, FED)) == [("plain", None)]
    same = Case(name="plain-fed", strategy=Plain(), loader=WITH_WORKERS, optional=True)
    assert baseline_cases(plan_of(same, FED)) == [("plain-fed", WITH_WORKERS)]


def test_a_workload_of_ones_own_brings_its_own_loader():
    with pytest.raises(UsageError, match=r"Case fed .* my:model brings its own batches"):
        plan_of(FED, workload="my:model")
    with pytest.raises(UsageError, match="my:model brings its own batches"):
        check_names(Request(), [suite_of(FED, workload="my:model")])
    check_names(Request(workload="mlp-tiny"), [suite_of(FED, workload="my:model")])
    plan_of(Case(name="ddp", strategy=Ddp()), workload="my:model")


# --- batches


@pytest.mark.parametrize("name", ["gpt-tiny", "cnn-8", "mlp-tiny"])
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_are_the_resident_ones_to_the_bit(name, rank):
    shard = Shard(rank, 2, 16, 3, CPU)
    resident = build_workload(PRESETS[name], shard).batches
    loaded = build_workload(PRESETS[name], shard, INLINE).batches
    for expected, batch in islice(zip(resident, loaded, strict=True), 4):
        for a, b in zip(expected, batch, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 7), st.integers(0, 1000))
def test_epochs_follow_one_another_as_resident_ones_do(world_size, batch_size, extra, seed):
    num_samples = 2 * world_size * batch_size + extra
    for rank in range(world_size):
        shard = Shard(rank, world_size, batch_size, seed, CPU)
        resident = ResidentBatches("w", num_samples, shard, lambda index: (index, -index))
        loaded = LoadedBatches(resident, INLINE, CPU)
        for _ in range(2):  # every iteration starts at the first epoch
            pairs = islice(zip(resident, loaded, strict=True), 3 * (2 + extra))
            assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_a_loader_leaves_the_model_its_random_numbers():
    torch.manual_seed(0)
    build_workload(PRESETS["mlp-tiny"], Shard(0, 1, 8, 0, CPU))
    expected = torch.random.get_rng_state()
    torch.manual_seed(0)
    workload = build_workload(PRESETS["mlp-tiny"], Shard(0, 1, 8, 0, CPU), INLINE)
    list(islice(workload.batches, 3))
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_with_a_loader_the_data_stay_in_host_memory():
    # The meta device stands in for a GPU: data that were moved there could not be read.
    shard = Shard(0, 1, 8, 0, torch.device("meta"))
    batch = next(iter(build_workload(PRESETS["mlp-tiny"], shard, INLINE).batches))
    assert all(part.device == CPU for part in batch)


def test_nothing_is_pinned_for_cpu_ranks():
    # Without a GPU the DataLoader would warn, and a warning fails the test.
    shard = Shard(0, 1, 8, 0, CPU)
    batches = build_workload(PRESETS["mlp-tiny"], shard, Loader(pin_memory=True)).batches
    assert not any(part.is_pinned() for part in next(iter(batches)))
