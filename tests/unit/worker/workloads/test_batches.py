from collections import namedtuple
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
from scalebench.worker.workloads.batches import (
    ResidentBatches,
    concatenate,
    endless,
    split,
)
from scalebench.worker.workloads.loaded import LoadedBatches
from tests.examples import examples

Pair = namedtuple("Pair", ["inputs", "targets"])
CPU = torch.device("cpu")


def samples(n, width=3):
    return torch.arange(n * width, dtype=torch.float32).reshape(n, width)


def same(left, right):
    """Equal in structure, types, shapes and values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def structures(n):
    """Batches of n samples, nested in every way that is allowed."""
    shapes = st.lists(st.integers(1, 3), max_size=2)
    leaves = shapes.map(lambda shape: torch.randn(n, *shape)) | st.just(torch.arange(n))
    constants = st.sampled_from([None, 3, "text", 0.5])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner | constants, min_size=1, max_size=3),
            st.lists(inner | constants, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abc"), inner | constants, min_size=1, max_size=3),
            st.tuples(inner, inner).map(lambda two: Pair(*two)),
        ),
        max_leaves=5,
    )


@settings(max_examples=examples(40))
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_joining_what_was_split_gives_the_batch_again(data, parts, rank_batch):
    batch = data.draw(structures(parts * rank_batch))
    pieces = split(batch, parts)
    assert len(pieces) == parts
    assert same(concatenate(pieces), batch)


@pytest.mark.parametrize(("num_samples", "parts"), [(10, 4), (6, 4), (2, 4), (5, 2)])
def test_a_batch_that_cannot_be_cut_into_equal_parts_is_refused(num_samples, parts):
    with pytest.raises((ValueError, UsageError), match=str(parts)):
        split(samples(num_samples), parts)


def test_a_feed_that_ignores_the_batch_size_is_refused():
    with pytest.raises(UsageError, match="contain 64 samples, but 32 were requested"):
        next(endless([samples(64)], CPU, 32))


@pytest.mark.parametrize("batch", [(samples(2), samples(3)), [], {"name": "x"}])
def test_a_feed_whose_samples_cannot_be_counted_is_refused(batch):
    with pytest.raises(UsageError, match="cannot be counted"):
        next(endless([batch], CPU, 2))


@pytest.mark.parametrize("batches", [[], (), iter(())])
def test_a_feed_of_nothing_is_the_workloads_fault(batches):
    with pytest.raises(UsageError, match="ended without a single batch"):
        next(endless(batches, CPU, 1))


def test_a_feed_that_can_be_iterated_once_says_so_at_its_end():
    feed = endless((samples(1) for _ in range(2)), CPU, 1)
    next(feed), next(feed)
    with pytest.raises(UsageError, match="more than once"):
        next(feed)


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
