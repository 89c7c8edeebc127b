import pytest

from scalebench.report.figures import memory as memory_figure
from scalebench.report.figures import style
from scalebench.report.tables import memory
from tests.builders.summaries import make_plain, make_row, remembered, remembered_rows


def table(rows, title="Peak of the fullest rank, and its prediction"):
    (found,) = [table for table in memory.tables(rows) if table.title == title]
    return found


def test_what_is_not_known_stands_with_its_reason():
    found = table(remembered_rows(), "What is not known, and why")
    reason = "the state of the optimizer Lion is not known"
    assert found.lines == (("ddp-1mb", "2", "prediction", reason),)
    known = [t.title for t in memory.tables([remembered(make_row())])]
    assert known == ["Peak of the fullest rank, and its prediction"]
    failed = make_row(
        peak_memory_bytes=None, memory={}, unavailable={"peak_memory_bytes": "inspection died"}
    )
    (only,) = memory.tables([failed])
    assert only.lines == (("ddp-25mb", "2", "peak", "inspection died"),)


def test_peaks_are_held_against_what_there_is():
    rows = [remembered(make_plain()), remembered(make_row(world_size=2))]
    machine = {"memory_bytes": 4_000_000_000, "cgroup_memory_bytes": 1_000_000_000}
    (told,) = memory_figure.capacity_sentence(rows, machine)
    assert told == (
        "All ranks share the machine's 1.00 GB; those of ddp-25mb, N=2 together hold 200 MB of"
        " live tensors, 20.0 % of it."
    )
    assert memory_figure.capacity_sentence(rows, {}) == []
    assert memory_figure.capacity_sentence([], machine) == []


def test_a_device_that_is_nearly_full_is_drawn_as_a_line():
    rows = [remembered(make_row(device="cuda", backend="nccl"))]
    small = {"devices": [{"memory_bytes": 200_000_000}, {"memory_bytes": 125_000_000}]}
    figure = memory_figure.MEMORY.draw(rows, style.assign(rows))
    memory_figure.draw_limit(figure, rows, small)
    assert figure.layout.shapes[0].x0 == pytest.approx(125.0)
    assert "80.0 % of it" in memory_figure.capacity_sentence(rows, small)[0]
    large = memory_figure.MEMORY.draw(rows, style.assign(rows))
    memory_figure.draw_limit(large, rows, {"devices": [{"memory_bytes": 80_000_000_000}]})
    assert not large.layout.shapes


@pytest.mark.parametrize("devices", [None, "<b>", [None], [{"memory_bytes": "many"}], [{}]])
def test_an_environment_from_elsewhere_is_not_believed(devices):
    assert memory_figure.device_bytes({"devices": devices}) is None
    assert memory_figure.machine_bytes({"memory_bytes": devices}) is None
