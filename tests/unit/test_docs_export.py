"""The documented exports, carried out on the committed run."""

import json
import shutil

from tests.conftest import Scalebench
from tests.integration.test_docs import ROOT, commands


def test_the_examples_of_exports(scalebench: Scalebench, project) -> None:
    shutil.copytree(ROOT / "reports" / "gallery" / "ddp-2-cores", project / "reports" / "latest")
    calls = commands("docs/export.md")
    written = set()
    for arguments in calls:
        done = scalebench(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        written |= set(done.stdout.split())
    assert len(calls) == 8 and len(written) == 9
    assert all((project / name).stat().st_size > 1000 for name in written)
    text = (ROOT / "docs" / "export.md").read_text()
    (name,) = {e["name"] for e in json.loads((project / "bench.smaller.json").read_text())} & {
        "ddp/ddp-bucket-1mb N=2 [gpt-tiny, strong, cpu] step_s"
    }
    assert name.removesuffix(" step_s") in text
