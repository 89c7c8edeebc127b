"""To which sizes the page projects a run."""

from pathlib import Path

from scalebench.analysis.page_data.extrapolation import WHAT_IFS, extrapolate
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"


def test_the_measured_sizes_and_five_doublings_beyond():
    run = load_run(GALLERY / "ddp-8-virtual-hosts")
    found = extrapolate(run, summarise(run))
    assert found.reason is None and len(found.changed) == len(WHAT_IFS)
    for projection in (found.as_measured, *found.changed.values()):
        sizes = {row.world_size for row in projection.rows}
        assert sizes == {2, 4, 8, 16, 32, 64, 128, 256}
