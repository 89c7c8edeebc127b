"""What a row says of its devices, wires, framework and failures."""

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.recovery import figures_of
from scalebench.analysis.rows.resources import mfu_of_row
from scalebench.analysis.rows.strategies.axes import wires_of_row
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.records.measured.recovery import FaultTimeline, RecoveryRecord
from scalebench.report import render_table
from scalebench.report.tables import communication as table
from scalebench.spec import DeepSpeed
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import PHASES
from tests.builders.links.nccl_wire_logs import LOGS
from tests.builders.runs import make_cell, make_inspection, make_record, make_result, make_run
from tests.examples import cases

A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "device_uuid": "a"}
FLOPS = 1e9
TF32_PEAK, FLOAT32_PEAK = 156e12, 19.5e12


def mfu_of(workload, convolutions, **tf32):
    """The row of one rank on an A100 that trains samples of 1 GFLOP each, in float32."""
    cell = make_cell("plain", 1, workload=PRESETS[workload], device="cuda")
    record = make_record(
        flops_per_sample=FLOPS, convolution_flops_per_sample=convolutions, facts={**A100, **tf32}
    )
    good = make_result(cell, ranks=[record])
    row = Launches(cell, good, {0: good})
    return row.throughput.value, mfu_of_row(row, None)["mfu"].value


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
    throughput, found = mfu_of(
        workload, convolutions, matmul_tf32=matmul_tf32, convolution_tf32=convolution_tf32
    )
    assert found == pytest.approx(FLOPS * throughput / peak)


CUDA = {"device": "cuda", "backend": "nccl"}
CELL = make_cell("ddp", 2, **CUDA)


def inspected(*logs, cell=CELL, **changes):
    found = make_inspection(cell)
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


def fault(kind="kill", by="scalebench", load=0.3, lost=3, data_s=0.25):
    phases = {**dict.fromkeys(PHASES, 0.1), "load": load}
    return FaultTimeline(
        kind=kind,
        restarted_by=by,
        rank=1,
        failed_after=8 + lost,
        saved_after=8,
        phases_s=phases,
        total_s=sum(phases.values()),
        data_s=data_s,
    )


def test_lost_time_has_the_names_of_the_field_and_sums_to_the_total():
    (killed,) = figures_of([[RecoveryRecord()]], [fault(), fault(load=0.5)]).failures
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
