"""Every figure of the committed runs: what the analysis makes of their records is what it made.

A run of each strategy, from recorded ranks to the whole summary. A field may be added; where one
changes, either the analysis is wrong or its definition changed. Then the gallery's summaries are
made anew, and the difference is read: ``scalebench show --json reports/gallery/NAME`` prints one.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"
LONG = {"compression-4-virtual-hosts"}
RUNS = [
    pytest.param(path.parent.name, marks=[pytest.mark.slow] * (path.parent.name in LONG))
    for path in sorted(GALLERY.glob("*/summary.json"))
]


def changed(old: Any, new: Any, where: str = "summary") -> Iterator[str]:
    """Yield what of the old JSON is gone or another value in the new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            yield from changed(value, new.get(name), f"{where}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from changed(*pair, f"{where}[{index}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-12):
            yield f"{where}: {old!r} became {new!r}"
    elif old != new:
        yield f"{where}: {old!r:.80} became {new!r:.80}"


@pytest.mark.parametrize("name", RUNS)
def test_the_records_of_a_run_give_its_committed_summary(name):
    folder = GALLERY / name
    old = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    new = json.loads(summarise(load_run(folder)).model_dump_json())
    assert list(changed(old, new))[:10] == []


def test_the_gallery_has_every_way_to_train():
    assert len(RUNS) >= 9
    found = {
        row["strategy"]
        for path in GALLERY.glob("*/summary.json")
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
    }
    assert found >= {"plain", "ddp", "fsdp", "zero1", "pipeline", "tensor", "context", "expert"}
