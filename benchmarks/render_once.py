"""Render one run in this process and print what it took, as JSON: imports are done before."""

import json
import resource
import sys
import time
from pathlib import Path

import scalebench.report.page.page  # noqa: F401  (its imports are not the rendering)
from scalebench.analysis.page_data import gather
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.report import render_page


def main(folder: Path) -> None:
    """Do what ``scalebench report`` does."""
    began = time.perf_counter()
    run = load_run(folder)
    summary = summarise(run)
    summarised = time.perf_counter()
    page = render_page([summary], [gather(run, summary)])
    (folder / "report.html").write_text(page, encoding="utf-8")
    ended = time.perf_counter()
    told = {
        "render_s": ended - began,
        "page_s": ended - summarised,
        "page_bytes": len(page.encode()),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
