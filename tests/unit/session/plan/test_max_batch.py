"""The search for the largest batch: what it finds, how many probes it needs, what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.records.largest_batch import LargestBatch
from scalebench.records.run import CellResult
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.plan.max_batch import (
    PRECISION,
    CannotProbe,
    for_max_batch,
    largest_fitting,
    why_too_large,
    with_largest_batches,
)
from scalebench.spec import Case, Cell, Ddp, Fsdp, Plain, Suite
from tests.builders.runs import make_cell, make_result

CPU_4 = Machine(num_gpus=0, num_cores=4)


@given(edge=st.integers(0, 10**6), first=st.integers(1, 10**4))
def test_the_edge_is_found_to_a_sixteenth_with_few_probes(edge, first):
    probes = []

    def fits(batch):
        probes.append(batch)
        return batch <= edge

    found = largest_fitting(fits, first)
    assert found.fits <= edge < found.too_large
    assert found.too_large - found.fits <= max(1, found.fits // PRECISION)
    assert len(probes) == len(set(probes))
    assert len(probes) <= 2 + max(edge, first).bit_length() + 14
    assert max(probes) <= max(first, 2 * edge)


def planned(*cases, machine=CPU_4, **request):
    suite = Suite(name="s", question="?", cases=cases, batch_size=8, repeats=2)
    device = "cpu" if machine is CPU_4 else "cuda"
    wanted = for_max_batch(
        Request(world_sizes=(1, 2), memory_limit_bytes=10**8, max_batch=True, **request), device
    )
    return make_plan(wanted, [suite], machine)


def batches(plan, purpose="measure"):
    return {
        (cell.case, cell.world_size): (cell.rank_batch, cell.global_batch)
        for cell in plan.cells
        if cell.purpose == purpose
    }


CASES = (
    Case(name="plain", strategy=Plain()),
    Case(name="fsdp", strategy=Fsdp()),
    Case(name="ddp-accumulate-4", strategy=Ddp(accumulate=4)),
)


def test_every_row_gets_its_own_batch_and_says_so():
    edges = {("plain", 1): 20, ("fsdp", 1): 20, ("fsdp", 2): 37}

    def fits(probe):
        assert probe.purpose == "fit" and probe.memory_limit_bytes == 10**8
        assert probe.global_batch == probe.rank_batch * probe.world_size
        return probe.rank_batch <= edges.get((probe.case, probe.world_size), 22)

    found = with_largest_batches(planned(*CASES), 10**8, fits)
    assert batches(found)["fsdp", 2] == (36, 72)
    assert batches(found)["plain", 1] == (20, 20)
    assert batches(found)["ddp-accumulate-4", 2] == (20, 40)  # 21 and 22 cannot be cut in four
    assert batches(found, "inspect") == batches(found)
    assert "fsdp, N = 2: 36 samples per rank fit, 38 do not" in found.notices
    assert "ddp-accumulate-4, N = 2: 20 samples per rank fit, 24 do not" in found.notices
    batch = LargestBatch(suite="s", case="fsdp", world_size=2, fits=36, too_large=38)
    assert batch in found.largest_batches and len(found.largest_batches) == 5


def test_a_row_that_goes_wrong_stays_as_it_is_for_the_run_to_say():
    def fits(probe):
        if probe.case == "fsdp":
            raise CannotProbe("no blocks")
        return probe.rank_batch <= 9

    found = with_largest_batches(planned(*CASES), 10**8, fits)
    assert batches(found)["fsdp", 2] == (8, 16)
    assert "fsdp, N = 1: no largest batch: no blocks" in found.notices


def test_what_contradicts_the_largest_batch_is_refused():
    with pytest.raises(UsageError, match="--scaling strong"):
        for_max_batch(Request(scaling="strong", memory_limit_bytes=1), "cpu")
    with pytest.raises(UsageError, match="--memory-limit 200MB"):
        for_max_batch(Request(), "cpu")
    assert for_max_batch(Request(), "cuda").scaling == "weak"


def cell(size: int, **changes: object) -> Cell:
    return make_cell("ddp", size).model_copy(update={"rank_batch": 8, **changes})


def out_of_memory(at: Cell) -> CellResult:
    return make_result(at).model_copy(update={"status": "oom", "reason": "rank 0: too much"})


def test_more_ranks_that_hold_no_less_are_not_tried() -> None:
    reason = why_too_large(cell(4), [out_of_memory(cell(2))])
    assert reason is not None and "N=2 ran out of memory" in reason and "--keep-going" in reason


@pytest.mark.parametrize(
    "larger",
    [
        cell(4, rank_batch=4),  # a smaller part of a divided batch
        cell(1),
        cell(2),
        cell(4, case="other"),
        cell(4, strategy=Fsdp()),
    ],
)
def test_what_may_fit_is_tried(larger: Cell) -> None:
    failed = cell(2, strategy=larger.strategy if isinstance(larger.strategy, Fsdp) else Ddp())
    assert why_too_large(larger, [out_of_memory(failed)]) is None
