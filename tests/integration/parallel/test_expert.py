"""Expert parallel training over real ranks: the result of one process, the messages of the law.

Run as a program, this file is the ranks.
"""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scalebench import Workload
from scalebench.analysis.rows.strategies import expert_figures
from scalebench.costmodel.context_layers import ExpertModel
from scalebench.records.rows.strategies import ExpertFigures
from scalebench.spec import Expert, Mesh
from scalebench.spec.presets import CustomTarget, MoeShape
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import first_batches, leave_gradients, train_watched
from tests.examples import cases
from tests.integration.programs import inspecting, looked_at, main, of_shards, reports_of, verified
from tests.integration.traced_steps import by_law

SAMPLES = 8
"""Of a step, all ranks together."""

SHAPE = {"layers": 2, "heads": 2, "width": 16, "context": 8, "experts": 4, "batch_size": SAMPLES}
TOP_2 = MoeShape(name="m", **SHAPE, top_k=2, capacity_factor=1.0)
DROPLESS = TOP_2.model_copy(update={"capacity_factor": None})


def mine(function):
    """A workload of this file."""
    module = "tests.integration.parallel.test_expert"
    return CustomTarget(name=function, module=module, function=function)


CASES = {
    "top-2": (Expert(), TOP_2),
    "top-1": (Expert(), TOP_2.model_copy(update={"top_k": 1})),
    "dropless": (Expert(), DROPLESS),
    "copies": (Expert(size=1), TOP_2),
    "groups": (Expert(size=2), TOP_2),
    "mesh": (Mesh(expert=2), TOP_2),
    "own": (Expert(), mine("own")),
    "one slow": (Expert(), mine("with_a_slow_expert")),
    "one busy": (Expert(), mine("with_a_busy_expert")),
    "checkpointing": (Expert(checkpointing=True), TOP_2),
    "bf16": (Expert(autocast=True), DROPLESS),
}
PLANTED = ("one slow", "one busy")
SLOW_EXPERT, BUSY_EXPERT = 2, 1
SLOW_S = 0.3
"""For how long the slow expert rests: beside it a late wake-up of the other rank is little."""


def of_size(world_size):
    wanted = {
        1: ("top-2", "top-1"),
        2: ("top-2", "top-1", "dropless", "copies", "own", "checkpointing", "bf16", *PLANTED),
        4: ("top-2", "dropless", "groups", "mesh", "copies"),
    }
    return {name: CASES[name] for name in wanted[world_size]}


class OwnExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 8, 8) / 8)

    def forward(self, tokens, counts, chosen):
        parts = zip(tokens.split(counts), self.matrix, strict=True)
        return torch.cat([part @ matrix for part, matrix in parts])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.experts = OwnExperts()

    def forward(self, x):
        expert = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0.5).long()
        order = expert.argsort(stable=True)
        counts = expert.bincount(minlength=4).tolist()
        worked = self.experts(self.first(x)[order], counts, counts)
        return self.last(torch.zeros_like(worked).index_copy(0, order, worked))


def own(shard):
    data = torch.Generator().manual_seed(100 + shard.rank)
    module = Own()
    return Workload(
        module=module,
        batches=[torch.randn(shard.batch_size, 8, generator=data) for _ in range(4)],
        loss=lambda module, x: F.mse_loss(module(x), x.sum(1, keepdim=True)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        experts=(module.experts,),
    )


class SlowExperts(OwnExperts):
    """Experts one of which rests before it computes; which it is travels with the parameters."""

    def __init__(self):
        super().__init__()
        self.rest_s = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.rest_s[SLOW_EXPERT] = SLOW_S

    def forward(self, tokens, counts, chosen):
        time.sleep(float(self.rest_s.sum()))
        return super().forward(tokens, counts, chosen)


def with_a_slow_expert(shard):
    workload = own(shard)
    workload.module.experts = SlowExperts()
    return replace(workload, experts=(workload.module.experts,))


def with_a_busy_expert(shard):
    workload = own(shard)
    for batch in workload.batches:
        batch[:-1, 0], batch[:-1, 1] = -1.0, 1.0
    return workload


def without_experts(shard):
    workload = own(shard)
    return Workload(workload.module, workload.batches, workload.loss)


def look(context):
    """Verify a case and hold it against the laws; ask the bare model's router."""
    inspection, launch, found = by_law(context)
    return found | {
        "peak_bytes": peak_without_data(inspection.memory),
        "alone": routed_alone(context),
        "experts": expert_figures([launch.result]).model_dump(),
        "unmatched": [launch.matched.mismatch, launch.matched.num_alone],
    }


def routed_alone(context):
    """For each layer, of this rank's first batch: how many tokens its experts have, and chose."""
    workload, seen = fresh_workload(context), []
    for experts in workload.experts:
        experts.register_forward_pre_hook(
            lambda _, given: seen.append({"kept": given[1], "chosen": given[2]})
        )
    workload.loss(workload.module, first_batches(1, context)[0])
    return seen


def peak_without_data(memory):
    return memory.allocated_bytes - (memory.data_bytes or 0)


def cells_of(world_size, **more):
    given = of_size(world_size) | more
    return {name: inspecting(*case, world_size, SAMPLES) for name, case in given.items()}


def run_rank(folder, rank, world_size):
    more = {"no experts": (Expert(), mine("without_experts"))}
    return looked_at(folder, rank, cells_of(world_size, **more), look)


def run_shards(folder, rank, world_size):
    return of_shards(
        cells_of(world_size), lambda own: peak_without_data(train_watched(own, leave_gradients))
    )


SIZES = (1, 2, 4)
every_case = cases("world_size, case", *[(n, c) for n in SIZES for c in of_size(n)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("expert")
    found = reports_of("parallel.test_expert", folder, SIZES, shards=True)
    return {0: {size: found[size].pop() for size in SIZES}, **found}


@every_case
def test_gradients_losses_and_memory_are_those_of_one_process(reports, world_size, case):
    verified(reports[world_size], case, 0.05 if case == "bf16" else 5e-6)
    # The peaks of a model so small differ with the tokens that come; so does the shard alone.
    peaks = [report[case]["peak_bytes"] for report in reports[world_size]]
    assert 0.95 * min(peaks) <= reports[0][world_size][case] <= 1.05 * max(peaks)


@every_case
def test_tokens_are_routed_as_in_one_process_and_none_is_lost_on_its_way(reports, world_size, case):
    """What the ranks of a group send is what their experts get."""
    loads = [report[case]["facts"]["expert_load"] for report in reports[world_size]]
    for report, load in zip(reports[world_size], loads, strict=True):
        for of_tokens in ("kept", "chosen"):
            alone = [layer[of_tokens] for layer in report[case]["alone"]]
            assert load[of_tokens][0] == alone
    size = loads[0]["ranks"]
    for first in range(0, world_size, size):
        group = loads[first : first + size]
        for step in range(len(group[0]["steps"])):
            for layer in range(len(group[0]["kept"][step])):
                sent = [load["kept"][step][layer] for load in group]
                got = [number for load in group for number in load["here"][step][layer]]
                assert got == [sum(of_expert) for of_expert in zip(*sent, strict=True)]


@every_case
def test_every_all_to_all_is_that_of_the_recorded_tokens_to_the_byte(reports, world_size, case):
    for report in reports[world_size]:
        load = report[case]["facts"]["expert_load"]
        found = [op[1] for op in report[case]["operations"] if op[0] == "all_to_all"]
        if load["ranks"] == 1:
            assert found == []
            continue
        counts, forward, backward = 8 * len(load["kept"][-1][0]), [], []
        for kept, here in zip(load["kept"][-1], load["here"][-1], strict=True):
            there_and_back = [sum(kept) * load["row_bytes"], sum(here) * load["row_bytes"]]
            again = [counts, *there_and_back] if case == "checkpointing" else []
            forward += [counts, *there_and_back]
            backward = [*again, *there_and_back, *backward]
        assert found == [*forward, *backward]


@every_case
def test_the_law_is_that_of_tokens_that_spread_evenly(reports, world_size, case):
    """All ranks together send what the law says where no token is dropped, else less."""
    for axis in ("expert", "data", "replicas"):
        found, predicted = (
            sum(op[1] for report in reports[world_size] for op in report[case][of] if op[2] == axis)
            for of in ("operations", "predicted")
        )
        if axis == "expert" and case in ("top-2", "top-1", "groups", "mesh", "checkpointing"):
            assert 0 < found < predicted or world_size == 1
        else:
            assert found == predicted


def test_a_layer_costs_four_all_to_alls_of_its_tokens(reports):
    predicted = [op for op in reports[4][0]["dropless"]["predicted"] if op[0] == "all_to_all"]
    tokens = SAMPLES // 4 * TOP_2.context
    large = [op for op in predicted if op[1] == 4 * TOP_2.width * TOP_2.top_k * tokens]
    assert len(large) == 4 * TOP_2.layers
    assert {op[1] for op in predicted if op not in large} == {8 * TOP_2.experts}


def test_the_model_of_a_preset_is_what_a_step_shows(reports):
    for world_size, case in ((1, "top-2"), (2, "top-2"), (4, "groups")):
        facts = reports[world_size][0][case]["facts"]
        assert ExpertModel.of(facts) == ExpertModel.of_preset(TOP_2, SAMPLES // world_size)


def test_operations_are_attributed_to_the_axis_whose_group_carried_them(reports):
    axes = {one["axis"]: one for one in reports[4][0]["groups"]["axes"]}
    ranks = {name: one["num_ranks"] for name, one in axes.items()}
    assert ranks == {"data": 4, "expert": 2, "replicas": 2}
    assert axes["replicas"]["count"] == 1
    assert axes["expert"]["count"] == 5 * TOP_2.layers
    for name in ("data", "replicas"):
        assert axes[name]["wire_bytes"] == axes[name]["predicted_wire_bytes"] > 0
    assert {one["axis"] for one in reports[4][0]["top-2"]["axes"]} == {"data", "expert"}
    for case in ("top-2", "groups"):  # uneven ones are matched over the ranks: waits can be told
        assert {str(report[case]["unmatched"]) for report in reports[4]} == {"[None, 0]"}


def experts_of(rank):
    return range(rank.first_expert, rank.first_expert + rank.num_experts)


def test_a_slow_expert_is_found_by_its_time_and_a_busy_one_by_its_tokens(reports):
    slow, times = ExpertFigures(**reports[2][0]["one slow"]["experts"]).slow_rank
    assert times > 10
    assert SLOW_EXPERT in experts_of(slow) and slow.experts_s >= SLOW_S
    figures = ExpertFigures(**reports[2][0]["one busy"]["experts"])
    assert (figures.busiest.layer, figures.busiest.expert) == (0, BUSY_EXPERT)
    assert figures.imbalance == pytest.approx(figures.busiest.times_mean)
    assert figures.imbalance >= 3 and figures.rank_imbalance > 1.7
    assert BUSY_EXPERT in experts_of(max(figures.ranks, key=lambda rank: rank.tokens))


def test_the_rows_figures_are_those_of_the_recorded_tokens(reports):
    for case in ("top-2", "dropless"):
        figures = ExpertFigures(**reports[4][0][case]["experts"])
        loads = [report[case]["facts"]["expert_load"] for report in reports[4]]
        chosen, kept = (
            sum(sum(map(sum, step)) for load in loads for step in load[name])
            for name in ("chosen", "kept")
        )
        assert figures.dropped_share == pytest.approx(1 - kept / chosen)
        assert (figures.dropped_share > 0) == (case == "top-2")
        steps = len(loads[0]["steps"])
        assert sum(map(sum, figures.tokens)) == pytest.approx(kept / steps)
        assert sum(rank.tokens for rank in figures.ranks) == pytest.approx(kept / steps)
        assert [rank.first_expert for rank in figures.ranks] == [0, 1, 2, 3]
        assert 0 < figures.all_to_all_share < 1


def test_a_workload_that_names_no_experts_is_refused(reports):
    assert "names its experts" in reports[2][0]["no experts"]


if __name__ == "__main__":
    main(run_rank, run_shards)
