"""Sharded training over real ranks: the result of one process, the bytes and memory of the laws.

The model has tied weights, and dimensions that no number of ranks here divides. Run as a program,
this file is the ranks.
"""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from scalebench import Workload
from scalebench.costmodel.memory import MeasuredBaseline, predict_memory
from scalebench.costmodel.sharding import predict_traffic
from scalebench.records.files import with_checksum
from scalebench.spec import Ddp, Fsdp, Fsdp1, Plain, Zero1
from scalebench.spec.presets import PRESETS, CustomTarget
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import inspect
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import whole
from scalebench.worker.strategies.data_parallel import PlainTraining
from scalebench.worker.workloads.batches import concatenate
from tests.examples import cases
from tests.integration.conftest import TRACED, row_of
from tests.integration.programs import inspecting, looked_at, main, reports_of
from tests.integration.traced_steps import traced_launch

SAMPLES = 2
"""Of a rank's batch."""
NUM_STEPS = 4

CASES = {
    "ddp": Ddp(),
    "fsdp": Fsdp(),
    "shard-grad-op": Fsdp(reshard_after_forward=False),
    "no-shard": Fsdp(shard_size=1),
    "hsdp": Fsdp(shard_size=2),
    "by-size": Fsdp(min_num_params=600),
    "prefetch": Fsdp(prefetch=2),
    "bf16": Fsdp(param_dtype="bfloat16"),
    "checkpointing": Fsdp(checkpointing=True),
    "selective": Fsdp(checkpointing="selective"),
    "fsdp1": Fsdp1(),
    "fsdp1-shard-grad-op": Fsdp1(reshard_after_forward=False),
    "zero1": Zero1(),
    "ddp-fp16": Ddp(accumulate=2, autocast="float16"),
    "fsdp-fp16": Fsdp(autocast="float16"),
    "hsdp-fp16": Fsdp(shard_size=2, autocast="float16"),
    "fsdp1-fp16": Fsdp1(autocast="float16"),
    "zero1-fp16": Zero1(autocast="float16"),
}
OF_FOUR = ("fsdp", "hsdp", "hsdp-fp16", "fsdp1", "zero1")
MEMORY = (
    *((case, "gpt-tiny") for case in ("fsdp", "shard-grad-op", "fsdp1", "zero1")),
    *((case, "gpt-mini") for case in ("fsdp", "zero1")),
)
"""Cases and workloads of which the memory is counted, at two ranks."""


def of_size(world_size):
    return {
        n: s for n, s in CASES.items() if (n in OF_FOUR if world_size == 4 else "hsdp" not in n)
    }


class Layer(nn.Module):
    """A residual block whose widths no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(18)
        self.mlp = nn.Sequential(nn.Linear(18, 35), nn.GELU(), nn.Linear(35, 18))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(37, 18)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(x, self.words.weight)


def tied(shard):
    """Gradient descent with momentum does not blow up rounding as Adam does."""
    module = Tied()
    data = torch.Generator().manual_seed(100 + shard.rank)
    batches = [torch.randint(37, (shard.batch_size, 9), generator=data) for _ in range(4)]
    return Workload(
        module=module,
        batches=batches,
        loss=next_word_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        blocks=tuple(module.layers),
    )


def next_word_loss(module, words):
    return nn.functional.cross_entropy(module(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


HERE = "tests.integration.parallel.test_sharded"
TIED = CustomTarget(name=f"{HERE}:tied", module=HERE, function="tied")


def look(context):
    """Verify a strategy as a launch does it; then train, and hold traffic and parameters."""
    cell = context.cell
    verification = inspect(context).verification
    workload = fresh_workload(context)
    num_parameters = sum(p.numel() for p in workload.module.parameters())
    training = build_training(workload, context)
    batches = list(workload.batches)
    for batch in batches[: NUM_STEPS - 2]:
        training.step_done(batch)
    # Other cases' groups are still there: where a strategy tells none, it has one.
    known = {} if training.groups else {"default": cell.world_size}
    launch = traced_launch(context, training, batches[NUM_STEPS - 2 : NUM_STEPS], known)
    groups = training.facts.get("group_elements")
    return {
        "verification": verification.model_dump(),
        "wire_bytes": launch.wire_bytes(context.rank),
        "predicted_wire_bytes": predict_traffic(
            cell.strategy, num_parameters, cell.world_size, groups
        ).total_bytes,
        "not_apart": launch.not_apart,
        "parameter_deviation": parameter_deviation(training, context),
        "loss_scale": training.scaler and training.scaler.history(),
    }


def parameter_deviation(training, context):
    """How far the ranks' parameters are from those of one process on the joined batches."""
    shards = [replace(context.shard, rank=rank) for rank in range(context.cell.world_size)]
    streams = [tied(shard).batches for shard in shards]
    plain = PlainTraining(Plain(), fresh_workload(context), context)
    for parts in list(zip(*streams, strict=True))[:NUM_STEPS]:
        plain.step(concatenate(parts))
    expected = {name: p.detach() for name, p in plain.module.named_parameters()}
    found = dict(full_parameters(training.module))
    assert found.keys() == expected.keys()
    return max(float((found[n] - p).norm() / p.norm()) for n, p in expected.items())


def full_parameters(module):
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module):
            yield from ((name, p.detach().clone()) for name, p in module.named_parameters())
        return
    for name, parameter in module.named_parameters():
        yield name.removeprefix("module."), whole(parameter.detach(), torch.device("cpu"))


def look_at_memory(context):
    cell = context.cell
    alone = inspecting(Plain(), cell.workload, 1, cell.global_batch)
    baseline = inspect(RankContext(alone, 0, 0, context.device)).memory
    counted = inspect(context).memory
    facts = build_training(fresh_workload(context), context).facts
    predicted = predict_memory(
        cell.strategy,
        cell.workload.num_parameters,
        cell.rank_batch,
        "AdamW",
        MeasuredBaseline(Plain(), cell.global_batch, baseline),
        cell.world_size,
        facts.get("group_elements"),
    )
    return {
        "group_bytes": 4 * max(facts.get("group_elements") or [0]),
        "counted": counted.model_dump(),
        "predicted": vars(predicted) | {"unavailable": dict(predicted.unavailable)},
        "total": predicted.total_bytes,
        "plain_bytes": baseline.allocated_bytes,
    }


def run_rank(folder, rank, world_size):
    if world_size > 2:
        batch = SAMPLES * world_size
        cells = {n: inspecting(s, TIED, world_size, batch) for n, s in of_size(world_size).items()}
        return looked_at(folder, rank, cells, look)
    batches = {"gpt-tiny": 8 * world_size, "gpt-mini": world_size}
    cells = {
        f"{name} {model}": inspecting(CASES[name], PRESETS[model], world_size, batches[model])
        for name, model in MEMORY
    }
    return looked_at(folder, rank, cells, look_at_memory)


FLAT = ("fsdp1", "fsdp1-shard-grad-op", "fsdp1-fp16")
"""Cases that pad whole groups, by a few elements that the law leaves out."""

EVERY = [(n, case) for n in (3, 4) for case in of_size(n)]
every_case = cases("world_size, case", *EVERY)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of("parallel.test_sharded", tmp_path_factory.mktemp("sharded"), (2, 3, 4))


@every_case
def test_gradients_losses_and_parameters_are_those_of_one_process(reports, world_size, case):
    found = [report[case] for report in reports[world_size]]
    assert {one["verification"]["status"] for one in found} == {"verified"}
    spoken = found[0]["verification"]
    assert 0 < spoken["gradient_deviation"] < (0.05 if case == "bf16" else 5e-6)
    allowed = 0.05 if case == "bf16" else 5e-3 if "fp16" in case else 5e-6
    assert 0 < max(one["parameter_deviation"] for one in found) < allowed


def test_all_ranks_skip_the_steps_whose_gradients_overflow(reports):
    """At a scale of 65,536 this model's do: the scale is halved until they are finite."""
    for n, case in EVERY:
        scales = [report[case]["loss_scale"] for report in reports[n]]
        assert scales == scales[:1] * n
        if "fp16" not in case:
            assert scales[0] is None
            continue
        steps, values = zip(*scales[0], strict=True)
        assert steps == tuple(range(len(steps)))
        assert len(steps) > 1 or case == "ddp-fp16"  # half of a batch at a time has half of them
        assert values == tuple(65536 / 2**step for step in steps)


@every_case
def test_traffic_is_as_predicted(reports, world_size, case):
    found = [report[case] for report in reports[world_size]]
    for one in found:
        allowed = 0.05 if case in FLAT else 1e-9
        flag = 6 if "fp16" in case else 0  # whether a gradient is infinite: bytes to all ranks
        predicted = pytest.approx(one["predicted_wire_bytes"], rel=allowed, abs=flag)
        assert one["wire_bytes"] == predicted
        assert "not found on all ranks" not in (one["not_apart"] or "")
        assert "do not show" not in (one["not_apart"] or "")


def test_sharding_costs_the_traffic_that_it_is_known_for(reports):
    """Resharding sends half as much again as an all-reduce, but for the root; bfloat16 less."""
    sent = {name: one["wire_bytes"] for name, one in reports[3][0].items()}
    assert 1.3 < sent["fsdp"] / sent["ddp"] < 1.6
    assert sent["no-shard"] == sent["ddp"]
    assert 1.0 <= sent["shard-grad-op"] / sent["ddp"] < 1.1  # what is above 1 is padding
    assert sent["zero1"] == pytest.approx(1.5 * sent["ddp"])
    assert sent["bf16"] < 0.7 * sent["fsdp"]
    of_four = reports[4][0]
    assert of_four["hsdp"]["wire_bytes"] < of_four["fsdp"]["wire_bytes"]


@cases("case, workload", *MEMORY)
def test_memory_is_as_predicted(reports, case, workload):
    """gpt-tiny: activations are most; gpt-mini with a sample per rank: the model's state is.

    On a busy machine a group of gathered parameters may be held longer than it is needed.
    """
    for report in reports[2]:
        found = report[f"{case} {workload}"]
        counted, predicted = found["counted"], found["predicted"]
        peak = counted["allocated_bytes"]
        assert 0.95 * peak - found["group_bytes"] <= found["total"] <= 1.05 * peak
        assert predicted["parameters_bytes"] == pytest.approx(counted["parameters_bytes"], rel=0.01)
        assert predicted["optimizer_bytes"] == pytest.approx(counted["optimizer_bytes"], rel=0.02)
        assert counted["allocated_bytes"] < 0.9 * found["plain_bytes"]


def test_the_largest_batch_fits_and_a_larger_one_does_not(scalebench, project):
    done = scalebench(
        *("run", "fsdp", "-k", "plain", "--gpus", "1", "--max-batch", "--memory-limit", "16MB"),
        *("--quick", "--steps", "4", "--no-trace", "--no-report", "--out", "r"),
        code=0,
    )
    limit = 16_000_000
    row = row_of(project / "r", "plain", 1)
    told = re.findall(r"plain, N = 1: (\d+) samples.* fit, (\d+) do not", done.stdout)
    fits, fails = map(int, told[0])
    assert (row["rank_batch"], row["global_batch"]) == (fits, fits)
    (found,) = json.loads((project / "r" / "summary.json").read_text())["largest_batches"]
    place = {"suite": "fsdp", "case": "plain", "world_size": 1}
    assert found == {**place, "fits": fits, "too_large": fails}
    # What another sample takes is known from the peak: the limit lies between the two batches.
    assert 0.85 * limit < row["peak_memory_bytes"] <= limit
    per_sample = row["memory"]["activations_bytes"] / fits
    assert row["peak_memory_bytes"] + (fails - fits) * per_sample > limit
    assert row["scaling"] == "weak" and row["correctness"]["status"] == "reference"


def test_a_share_alone_has_the_memory_that_the_rank_has_in_the_job(scalebench, project):
    cases = "zero1 or fsdp-shard"
    scalebench("run", "fsdp", "-k", cases, "--gpus", "1,2", *TRACED, "--out", "r", code=0)
    done = scalebench("project", "r", "--gpus", "2,8,64", "--measure-shard", "--json", code=0)
    rows = {(row["case"], row["world_size"]): row for row in json.loads(done.stdout)["rows"]}
    for case in ("zero1", "fsdp-shard-grad-op"):
        shares = {n: rows[case, n]["share"] for n in (2, 8)}
        really = row_of(project / "r", case, 2)["peak_memory_bytes"]
        assert shares[2]["peak_memory_bytes"] == pytest.approx(really, rel=0.02)
        assert shares[8]["peak_memory_bytes"] < 0.8 * shares[2]["peak_memory_bytes"]
        for n, share in shares.items():
            row = rows[case, n]
            computing = row["step_s"] - row["exposed_transfer_s"]
            assert computing == pytest.approx(share["step_s"])
        assert "no sample for each of 64 ranks" in rows[case, 64]["reason"]

    # Made by another torch, it says nothing.
    written = project / "r" / "run.json"
    run = json.loads(written.read_text())
    run["environment"]["torch"] = "1.0"
    del run["sha256"]
    written.write_text(with_checksum(json.dumps(run)))
    done = scalebench("project", "r", "--gpus", "8", "--measure-shard", code=5)
    assert "was made with a different torch: a shard measured here says nothing" in done.stderr


OVERFLOWING = """
from itertools import count

import torch
from scalebench import Workload

CALLS = count(1)

def loss(module, batch):
    x, y = batch
    return torch.nn.functional.mse_loss(module(x), y) * (1e9 if next(CALLS) % 40 == 0 else 1)

def workload(shard):
    data = torch.Generator().manual_seed(shard.rank)
    x = torch.randn(shard.batch_size, 8, generator=data)
    return Workload(module=torch.nn.Linear(8, 1), batches=[(x, x[:, :1])], loss=loss)
"""


def test_skipped_steps_are_counted_and_are_no_progress(scalebench, project):
    (project / "overflowing.py").write_text(OVERFLOWING)
    scalebench(
        *("run", "ddp", "-k", "ddp and not bucket and not accumulate", "--gpus", "1,2"),
        *("--workload", "overflowing:workload", "--batch-size", "8", "--dtype", "float16"),
        *("--steps", "60", "--quick", "--no-trace", "--no-report", "--out", "r"),
        code=0,
    )
    for case, n in (("plain", 1), ("ddp", 1), ("ddp", 2)):
        row = row_of(project / "r", case, n)
        assert row["correctness"]["status"] == ("reference" if case == "plain" else "verified")
        skipped = row["num_skipped_steps"]
        assert 1 <= skipped <= 3
        assert f"skipped steps: {skipped} of 60 clean steps" in row["stamps"]
        values = [scale for _, scale in row["loss_scale"]]
        assert values == [65536 / 2**k for k in range(len(values))] and len(values) > skipped
        if n == 1:  # the job's steps are the rank's own
            (launch,) = row["samples"]
            mean_s = sum(launch["step_s"]) / 60
            assert row["step_s"]["value"] == pytest.approx(mean_s * 60 / (60 - skipped))


UNEQUAL = """
import time

import torch
from scalebench import Case, Ddp, Suite, Workload

SAMPLE_S = [0.01, 0.03]

def workload(shard):
    data = torch.Generator().manual_seed(shard.rank)
    x = torch.randn(shard.batch_size, 8, generator=data)

    def loss(module, batch):
        time.sleep(SAMPLE_S[shard.rank] * len(batch[0]))
        return torch.nn.functional.mse_loss(module(batch[0]), batch[1])

    return Workload(module=torch.nn.Linear(8, 1), batches=[(x, x[:, :1])], loss=loss)

SUITE = Suite(
    name="unequal",
    question="Do shares follow the speed of the ranks?",
    cases=(
        Case(name="ddp", strategy=Ddp()),
        Case(name="balanced", strategy=Ddp(balance="measured", balance_every=3, accumulate=2)),
        Case(
            name="static",
            strategy=Ddp(balance="measured", balance_every=3, static_graph=True),
        ),
    ),
    workload="unequal:workload",
    batch_size=16,
)
"""


def test_the_slow_rank_gets_fewer_samples_and_the_gradient_stays(scalebench, project):
    """A sample takes rank 1 three times as long: of 16, the ranks are done together at 12 and 4."""
    (project / "unequal.py").write_text(UNEQUAL)
    rows = ("ddp.n2", "balanced.n1", "balanced.n2", "static.n2")
    only = [word for row in rows for word in ("--only", f"unequal.{row}")]
    words = ("--steps", "6", "--quick", "--no-trace", "--no-report", "--out", "r")
    scalebench("run", "unequal.py", "--gpus", "1,2", *only, *words, code=0)
    for case in ("balanced", "static"):  # as DDP sees it, the graph is the same for any share
        row = row_of(project / "r", case, 2)
        assert row["correctness"]["status"] == "verified"
        found = row["balance"]
        fast, slow = found["shares"]
        assert (fast, slow) in {(10, 6), (11, 5), (12, 4), (13, 3)}
        assert found["history"][0] == [0, [8, 8]] and found["history"][-1][1] == [fast, slow]
        assert found["sample_s"][0] >= 0.01 and found["sample_s"][1] >= 0.03
        each = found["sample_s"]  # less with these shares, unless the machine was busy meanwhile
        assert found["balanced_s"] == pytest.approx(max(fast * each[0], slow * each[1]))
        assert found["equal_s"] == pytest.approx(8 * max(each))
        assert found["ideal_s"] <= found["balanced_s"] * (1 + 1e-9)
    alone, equal = row_of(project / "r", "balanced", 1), row_of(project / "r", "ddp", 2)
    assert alone["balance"] is None and alone["correctness"]["status"] == "verified"
    assert equal["unavailable"]["balance"] == "the ranks have equal shares"


if __name__ == "__main__":
    main(run_rank)
