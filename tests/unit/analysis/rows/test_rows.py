import json
from pathlib import Path

import numpy as np
import pytest

from scalebench.analysis.rows.attribution import efficiencies
from scalebench.analysis.rows.axes import wires_of_row
from scalebench.analysis.rows.launches import Launches, Unavailable
from scalebench.analysis.rows.rank_excess import excesses
from scalebench.analysis.rows.recovery import figures_of
from scalebench.analysis.rows.resources import mfu_of_row
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.records.measured.recovery import FaultTimeline, RecoveryRecord
from scalebench.report import render_page, render_table
from scalebench.report.tables import communication as table
from scalebench.spec import DeepSpeed
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import PHASES
from tests.builders.links.nccl_wire_logs import LOGS
from tests.builders.runs import make_cell, make_inspection, make_record, make_result, make_run
from tests.builders.tracing import traced
from tests.examples import cases

A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "device_uuid": "a"}
FLOPS = 1e9
TF32_PEAK, FLOAT32_PEAK = 156e12, 19.5e12


@cases(
    "workload, convolutions, matmul_tf32, convolution_tf32, peak",
    ("gpt-tiny", 0.0, False, True, FLOAT32_PEAK),
    ("gpt-tiny", 0.0, True, False, TF32_PEAK),
    ("cnn-8", FLOPS, False, True, TF32_PEAK),
    ("cnn-8", FLOPS, True, False, FLOAT32_PEAK),
    ("cnn-8", None, False, True, TF32_PEAK),  # a stored run that did not count them
    ("gpt-tiny", None, False, True, FLOAT32_PEAK),
    ("cnn-8", 0.5 * FLOPS, False, True, 2 / (1 / TF32_PEAK + 1 / FLOAT32_PEAK)),
)
def test_the_peak_is_that_of_the_arithmetic_in_use(
    workload, convolutions, matmul_tf32, convolution_tf32, peak
):
    """Of the row of one rank on an A100 that trains samples of 1 GFLOP each, in float32."""
    cell = make_cell("plain", 1, workload=PRESETS[workload], device="cuda")
    facts = {**A100, "matmul_tf32": matmul_tf32, "convolution_tf32": convolution_tf32}
    counted = {"flops_per_sample": FLOPS, "convolution_flops_per_sample": convolutions}
    good = make_result(cell, ranks=[make_record(facts=facts, **counted)])
    row = Launches(cell, good, {0: good})
    found = mfu_of_row(row, None)["mfu"].value
    assert found == pytest.approx(FLOPS * row.throughput.value / peak)


CUDA = {"device": "cuda", "backend": "nccl"}
CELL = make_cell("ddp", 2, **CUDA)


def inspected(*logs, **changes):
    found = make_inspection(CELL)
    ranks = [
        rank.model_copy(update={"wires": log and read_nccl_log(LOGS[log].splitlines()), **changes})
        for rank, log in zip(found.ranks, logs, strict=True)
    ]
    return found.model_copy(update={"ranks": ranks})


@cases(
    "cell, inspection, reason",
    (make_cell("ddp", 1, **CUDA), None, "one rank sends to no other"),
    (make_cell("ddp", 2), None, "these ranks are on CPU"),
    (CELL, None, "doctor --nccl-log"),
    (CELL, inspected(None, None), "recorded no log"),
    (CELL, inspected(None, None, wires_unavailable="NCCL_DEBUG is set"), "NCCL_DEBUG is set"),
)
def test_what_is_not_known_has_a_reason(cell, inspection, reason):
    (why,) = wires_of_row(Launches(cell, inspection), None).values()
    assert isinstance(why, Unavailable) and reason in str(why)


def test_a_slow_wire_is_marked_and_told_with_the_variable_to_set():
    inspection = inspected("2.21 RoCE without GDR", None)
    inspection = inspection.model_copy(
        update={"cell": inspection.cell.model_copy(update={"purpose": "inspect"})}
    )
    summary = summarise(make_run([inspection, make_result(CELL)]))
    (row,) = summary.rows
    assert [one.name for one in row.wires.transports] == ["NET/IB"]
    assert [stamp.partition(":")[0] for stamp in row.stamps if "wires" in stamp] == ["slow wires"]
    (shown,) = table.wires_tables([row])
    assert [line[2:] for line in shown.lines] == [("NET/IB", "0→8, 8→0", "mlx5_0:1", "off")]
    assert "NCCL_NET_GDR_LEVEL" in table.wires_sentence([row])
    told = render_table(summary, width=160, verbose=True)
    assert "slow wires" in told and "GPUDirect RDMA is off" in told
    assert "NCCL_NET_GDR_LEVEL" in told


FRAMEWORK_CELL = make_cell("deepspeed", 2, strategy=DeepSpeed(), suite="frameworks")


@cases(
    "told, mark",
    ({"untested": []}, None),
    ({"untested": ["deepspeed"]}, "version not tested: deepspeed 9.0"),
    (
        {"untested": ["deepspeed"], "tested": {"deepspeed": "0.19.8"}},
        "version not tested: deepspeed 9.0 (tested: 0.19.8)",
    ),
)
def test_a_mark_names_the_version_and_the_tested_one(told, mark):
    facts = {"framework": {"versions": {"deepspeed": "9.0"}, "settings": {}, **told}}
    ranks = [make_record(rank, facts=facts) for rank in (0, 1)]
    (row,) = summarise(make_run([make_result(FRAMEWORK_CELL, ranks=ranks)])).rows
    assert [one for one in row.stamps if "not tested" in one] == ([mark] if mark else [])


def fault(load):
    phases = {**dict.fromkeys(PHASES, 0.1), "load": load}
    told = {"kind": "kill", "restarted_by": "scalebench", "rank": 1, "data_s": 0.25}
    told |= {"failed_after": 11, "saved_after": 8, "phases_s": phases}
    return FaultTimeline(total_s=sum(phases.values()), **told)


def test_lost_time_has_the_names_of_the_field_and_sums_to_the_total():
    (killed,) = figures_of([[RecoveryRecord()]], [fault(0.3), fault(0.5)]).failures
    seconds = {name: part.value for name, part in killed.badput_s.items()}
    assert seconds == pytest.approx(
        {
            "infrastructure": 0.2,
            "initialisation": 0.3,
            "restore": 0.15,  # 0.4 s of loading, of which the data takes 0.25 s
            "data": 0.25,
            "lost_progress": 0.2,
        }
    )
    assert sum(seconds.values()) == pytest.approx(killed.total_s.value)


RUN = str(Path(__file__).parents[4] / "reports" / "gallery" / "ddp-2-cores")
EPOCH = {
    1: (2.189866e10, 0.999256, 0.999256, 1.0, 0.999256, 0.999365, 0.999891, 1.0),
    2: (1.152837e10, 0.949065, 0.993783, 0.997618, 0.996164, 0.997918, 0.998246, 0.955003),
    8: (3.513565e09, 0.778496, 0.957077, 0.983257, 0.973820, 0.991759, 0.982061, 0.813409),
    16: (2.339561e09, 0.584575, 0.951512, 0.992793, 0.958719, 0.987371, 0.971348, 0.614364),
}
"""Processes → run time (ns), and global, parallel, load balance, communication, transfer,
serialisation, computation scaling: EPOCH on 1 to 16 processes, as NAG's PyPOP prints its example
(numericalalgorithmsgroup/pypop, MPI Metrics Example). It divides by each
process's own run time, so that its products hold to 5e-4 only."""
NAMES = (
    "global_efficiency", "parallel_efficiency", "load_balance", "communication_efficiency",
    "transfer_efficiency", "serialisation_efficiency", "computation_scaling",
)  # fmt: skip


@cases("num_ranks", *EPOCH)
def test_the_example_of_the_pop_centre_comes_out(num_ranks):
    runtime, *expected = EPOCH[num_ranks]
    mean, longest = expected[1] * runtime, expected[3] * runtime
    rest = (mean * num_ranks - longest) / max(num_ranks - 1, 1)
    useful = [longest, *[rest] * (num_ranks - 1)]
    reference = EPOCH[1][2] * EPOCH[1][0]
    found = efficiencies(useful, runtime, expected[4] * runtime, reference)
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=5e-4)


@pytest.mark.slow
def test_command_page_and_export_have_them_and_products_hold(in_process):
    rows = json.loads(in_process("show", RUN, "--json").stdout)["rows"]
    (row,) = [row for row in rows if (row["case"], row["world_size"]) == ("ddp", 2)]
    pop = {name: row["pop"][name]["value"] for name in NAMES}
    assert all(0 < value <= 1.001 for name, value in pop.items() if name != NAMES[-1])
    assert pop["parallel_efficiency"] == pytest.approx(
        pop["load_balance"] * pop["serialisation_efficiency"] * pop["transfer_efficiency"]
    )
    assert pop["global_efficiency"] == pytest.approx(
        pop["parallel_efficiency"] * pop["computation_scaling"]
    )
    shown = in_process("show", RUN, "--pop").stdout
    assert "POP's efficiencies" in shown and "serialisation × transfer (POP Centre" in shown
    exported = in_process("export", RUN, "--format", "openmetrics").stdout
    assert 'scalebench_pop_load_balance_ratio{suite="ddp",case="ddp"' in exported
    assert "POP&#39;s efficiencies" in render_page([summarise(load_run(Path(RUN)))])


STEPS, STEP_S = 64, 0.1


def launches(own, others=0.0006, num_ranks=2, num_launches=3, steps=STEPS, noise=0.5, seed=0):
    """Seconds by rank and step: rank 1 has ``own``, a number or one for each step."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(num_launches):
        seconds = np.full((num_ranks, steps), others)
        seconds[1] = np.resize(own, steps)
        found.append(seconds * random.lognormal(0, noise, (num_ranks, steps)))
    return found


BURSTS = (0.140, 0.0, 0.0, 0.0)
"""Four workers deliver four batches at once."""


@cases(
    "seconds, longer_s",
    pytest.param(launches(0.035, noise=1.0), 0.035, id="fifty times as long"),
    pytest.param(launches(BURSTS, num_launches=1), 0.035, id="in bursts"),
    pytest.param(launches(0.035, num_ranks=8), 0.035, id="one of eight"),
    pytest.param(launches(0.035, steps=12, num_launches=1), 0.035, id="few steps"),
)
def test_one_rank_is_named_with_its_size(seconds, longer_s):
    (found,) = excesses("data_stall", seconds, STEP_S)
    assert (found.rank, found.part) == (1, "data_stall")
    of_rank = np.mean([one[1].mean() for one in seconds])
    assert found.own_s == pytest.approx(of_rank) and found.own_s > 0.6 * longer_s
    assert found.others_s < 0.002
    assert 0.9 * found.num_blocks <= found.num_longer <= found.num_blocks


TURNED = [*launches(0.02, 0.005), *(one[::-1] for one in launches(0.02, 0.005, num_launches=1))]


@cases(
    "seconds",
    pytest.param(launches(0.02, 0.02, noise=1.0), id="noise alone"),
    pytest.param(TURNED, id="another rank in one launch"),
    pytest.param(launches(0.035, steps=6, num_launches=1), id="too few steps"),
    pytest.param(launches(0.0008, 0.0001), id="less than a hundredth of a step"),
    pytest.param(launches(0.026, 0.02, noise=0.01), id="hardly longer"),
    pytest.param([], id="nothing recorded"),
)
def test_nobody_is_named(seconds):
    assert excesses("data_stall", seconds, STEP_S) == []


def test_a_rank_that_computes_longer_in_each_traced_step_and_comes_late_is_named():
    def rank(number, ms):
        sent = [traced.make_operation(105 * i + ms, 105 * i + 70, i) for i in range(20)]
        computed, steps = ([(105 * i, 105 * i + ends) for i in range(20)] for ends in (ms, 100))
        return traced.make_traced_record(number, traced.make_trace(sent, computed, steps))

    (row,) = summarise(make_run([traced.make_traced_result(rank(0, 40), rank(1, 65))])).rows
    found = {one.part: (one.rank, one.own_s, one.others_s) for one in row.rank_excess}
    assert found["compute"] == pytest.approx((1, 0.065, 0.040))
    assert found["lateness"] == pytest.approx((1, 0.025, 0.0))


def test_equal_ranks_are_named_as_seldom_as_the_test_says():
    named = sum(
        bool(excesses("compute", launches(0.02, 0.02, num_ranks=4, noise=1.5, seed=seed), 1e-3))
        for seed in range(200)
    )
    assert named <= 2
