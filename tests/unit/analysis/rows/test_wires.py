"""Which wires a row took, and why it is not known."""

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.wires import wires_of_row
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.report.table import render_table
from scalebench.report.tables import wires as table
from tests.builders.nccl_wire_logs import LOGS
from tests.builders.runs import make_cell, make_inspection, make_result, make_run

CUDA = {"device": "cuda", "backend": "nccl"}
CELL = make_cell("ddp", 2, **CUDA)


def inspected(*logs, cell=CELL, **changes):
    found = make_inspection(cell)
    ranks = [
        rank.model_copy(update={"wires": log and read_nccl_log(LOGS[log].splitlines()), **changes})
        for rank, log in zip(found.ranks, logs, strict=True)
    ]
    return found.model_copy(update={"ranks": ranks})


@pytest.mark.parametrize(
    ("cell", "inspection", "reason"),
    [
        (make_cell("ddp", 1, **CUDA), None, "one rank sends to no other"),
        (make_cell("ddp", 2), None, "these ranks are on CPU"),
        (CELL, None, "doctor --nccl-log"),
        (CELL, inspected(None, None), "recorded no log"),
        (CELL, inspected(None, None, wires_unavailable="NCCL_DEBUG is set"), "NCCL_DEBUG is set"),
    ],
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
    (shown,) = table.tables([row])
    assert [line[2:] for line in shown.lines] == [
        ("NET/IB", "0→8, 8→0", "mlx5_0:1", "off"),
    ]
    assert "NCCL_NET_GDR_LEVEL" in table.sentence([row])
    told = render_table(summary, width=160, verbose=True)
    assert "slow wires" in told and "GPUDirect RDMA is off" in told
    assert "NCCL_NET_GDR_LEVEL" in told


def test_hostile_names_of_a_log_are_shown_as_plain_text():
    log = "\x1b[31ma:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[0] [send] via NET/<b>\x1b[0m/0"
    wires = read_nccl_log([log])
    shown = table.render_wires(wires, 100, False, True)
    assert "\x1b" not in shown
