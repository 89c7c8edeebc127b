"""POP's efficiencies: equal to examples that partners of the POP centre publish, and played."""

import json
from pathlib import Path

import pytest

from scalebench.analysis.rows.pop import efficiencies
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.report import render_page

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


@pytest.mark.parametrize("num_ranks", EPOCH)
def test_the_example_of_the_pop_centre_comes_out(num_ranks):
    runtime, *expected = EPOCH[num_ranks]
    mean, longest = expected[1] * runtime, expected[3] * runtime
    rest = (mean * num_ranks - longest) / max(num_ranks - 1, 1)
    useful = [longest, *[rest] * (num_ranks - 1)]
    reference = EPOCH[1][2] * EPOCH[1][0]
    found = efficiencies(useful, runtime, expected[4] * runtime, reference)
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("mean", "longest", "ideal", "runtime", "expected"),
    [
        (32.554688, 33.338641, 39.388323, 40.009749,
         (0.813669, 0.976485, 0.833263, 0.846409, 0.984468)),
        (7.402236, 7.826016, 11.941295, 14.083169,
         (0.525609, 0.945850, 0.555700, 0.655374, 0.847913)),
    ],
)  # fmt: skip
def test_times_that_were_measured_give_the_printed_efficiencies(
    mean, longest, ideal, runtime, expected
):
    """64 and 256 processes as RWTH's OTF-CPT prints them (RWTH-HPC/OTF-CPT, script/data)."""
    found = efficiencies([longest, 2 * mean - longest], runtime, ideal)
    names = ("parallel_efficiency", "load_balance", "communication_efficiency",
             "serialisation_efficiency", "transfer_efficiency")  # fmt: skip
    assert [found[name] for name in names] == pytest.approx(expected, abs=2e-6)
    assert "computation_scaling" not in found


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
