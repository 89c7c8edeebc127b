"""``scalebench trace`` as a user calls it."""

import json
import os
import re
import sys
from pathlib import Path

from tests.conftest import ran
from tests.examples import cases
from tests.integration.conftest import complaint

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
TRACES = sorted(str(path) for path in GOLDEN.glob("nccl*.json.gz"))
GLOO = str(GOLDEN / "gloo_2ranks_rank0.json.gz")


def test_table_and_page(scalebench, project):
    done = scalebench("trace", *TRACES[1:], "--html", "page.html", code=0)
    assert "14.9 %" in done.stdout
    assert "19.9 %" in done.stdout
    assert "all_to_all" in done.stdout
    assert "page.html" in done.stderr
    assert (project / "page.html").stat().st_size > 1e6


def test_json_alone_on_standard_output(in_process):
    done = in_process("trace", TRACES[0], "--json", "--window", "steps", code=0)
    answer = json.loads(done.stdout)
    assert answer["window"] == "steps"
    assert answer["files"][0]["num_steps"] == 2
    assert answer["files"][0]["window_s"] < 0.45


def test_one_bad_file_among_several(in_process, project):
    (project / "empty.json").touch()
    done = in_process("trace", TRACES[0], "empty.json", "--json", code=4)
    assert done.stderr.strip() == (
        "scalebench: empty.json is empty. A trace is what torch.profiler's export_chrome_trace "
        "writes, plain or with gzip."
    )
    assert len(json.loads(done.stdout)["files"]) == 1


def test_nothing_but_bad_files(in_process, project):
    (project / "notes.json").write_text('{"model": "gpt"}')
    done = in_process("trace", "absent.json", "notes.json", code=2)
    assert done.stdout == ""
    assert "absent.json cannot be read" in done.stderr
    assert "notes.json is JSON without traceEvents" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_got_slower_than_in_an_earlier_trace(in_process):
    done = in_process("trace", TRACES[3], "--against", TRACES[2], "--json", code=0)
    against = json.loads(done.stdout)["against"]
    (copies,) = [kind for kind in against["kinds"] if kind["kind"] == "copy"]
    assert copies["after_s"] > 5 * copies["before_s"] > 0
    table = in_process("trace", TRACES[3], "--against", TRACES[2]).stdout
    assert re.search(r"^copy .*\+\d", table, re.M)


@cases(
    "arguments, code, said",
    ((TRACES[0], "--html", "no/such/folder/page.html"), 5, "page cannot be written"),
    ((TRACES[0], "--communication", "own("), 2, "own( is no regular expression: missing )"),
    ((TRACES[2], "--against", "absent.json"), 2, "--against absent.json: there is no such file"),
    ((TRACES[2], "--against", "nvlink4"), 2, "a link by name goes with dumps"),
    ((TRACES[2], "--against", GLOO), 2, "gloo_2ranks_rank0.json.gz has no GPU"),
)
def test_what_cannot_be_done_is_told(in_process, arguments, code, said):
    assert said in complaint(in_process("trace", *arguments), code)


RECORDED = """
import os
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1000))
if rank == 0:
    dist.broadcast(torch.ones(1000), 0, async_op=True)
for name, dump in (("pickle", c10d._dump_fr_trace), ("json", c10d._dump_fr_trace_json)):
    with open(f"{name}_rank_{rank}", "wb") as file:
        file.write(dump())
os._exit(0)
"""


def test_dumps_that_torch_wrote(in_process, project):
    (project / "hangs.py").write_text(RECORDED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran([*torchrun, "hangs.py"], project, {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}, code=0)
    for form in ("pickle", "json"):
        done = in_process(
            "trace", f"{form}_rank_0", f"{form}_rank_1", "--against", "nvlink4", code=0
        )
        assert "the last collective is 2, broadcast" in done.stdout
        assert "rank 1 did not enter it; the last call was 1, all_reduce" in done.stdout
        done = in_process("trace", f"{form}_rank_0", f"{form}_rank_1", "--json")
        (group,) = json.loads(done.stdout)["sources"][0]["groups"]
        assert [behind["rank"] for behind in group["missing"]] == [1]
    refused = in_process("trace", "pickle_rank_0", "--html", "page.html", code=2)
    assert "dumps of collectives have no page" in refused.stderr
