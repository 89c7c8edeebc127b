"""What scalebench makes of recorded runs, traces and logs, field by field.

``python -m tests.golden_runs`` renews the files in tests/golden/runs. Each holds a digest of every
field of the summary, of every export, of the gate's answer and of every piece of the page, numbers
rounded to six digits; the tables lie beside it as text. So a change of the code that should change
nothing changes nothing here, and `git diff` shows what did. ``python -m tests.golden_runs DIR``
writes the whole texts to DIR instead: of two versions, `diff -r` shows what differs.
"""

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from scalebench.analysis.page_data import gather
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.cli import cli
from scalebench.errors import ScalebenchError
from scalebench.report import render_table
from scalebench.report.export import FORMATS
from scalebench.report.page.page import render_page

ROOT = Path(__file__).parents[1]
GOLDEN = Path("tests/golden")
STORED = GOLDEN / "runs"
GALLERY = Path("reports/gallery")
TRACES = {
    "gloo": "gloo_2ranks_rank*.json.gz",
    "nccl-kernels": "nccl-2.17_2ranks_rank0.json.gz",
    "nccl-sendrecv": "nccl-sendrecv_128ranks_rank*.json.gz",
    "nccl-one-rank": "nccl-2.28_h200_1rank.json.gz",
}
SEARCHES = {
    "gpt-7b-64": "--gpus 64 --workload gpt-7b --gpu-type h100 --mfu 0.45 --batch-size 512",
    "gpt-124m-16": "--gpus 16 --workload gpt-124m --gpu-type a100 --mfu 0.4 --batch-size 64 "
    "--link nvlink3+infiniband-hdr --ranks-per-node 4",
    "gpt-moe-8": "--gpus 8 --workload gpt-moe --gpu-type a100 --mfu 0.4 --memory-limit 40GB",
    "gpt-124m-8": "--gpus 8 --workload gpt-124m --gpu-type h100 --mfu 0.3 --links dgx-h100 "
    "--margin 0.1",
    "nothing-fits": "--gpus 2 --workload gpt-7b --gpu-type a100 --mfu 0.4 --memory-limit 1GB",
}
PROJECTIONS = {
    "ddp": "ddp-2-cores --gpus 8,64",
    "ddp-fp8": "ddp-2-cores --gpus 16 --gradient-bits 8 --bucket-mb 4 --times-bandwidth 2",
    "ddp-topology": "ddp-8-virtual-hosts --gpus 16,32 --topology dgx-h100 --hierarchical",
    "fsdp": "fsdp-2-cores --gpus 8,64",
    "pipeline": "pipeline-2-cores --gpus 8 --microbatches 16",
    "tensor": "tensor-2-cores --gpus 4",
    "recovery": "recovery-2-cores --gpus 64 --device-mtbf 50000h",
}
DECIMAL = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e-\d+")
PIECE = re.compile(r"(?=<(?:section|figure|script)\b)")
NAME = re.compile(r'(?:\bid|aria-labelledby)="([^"]+)"')
# The compressed size of a file follows from the last digits of its numbers: it differs by machine.
DOWNLOAD = re.compile(r'href="data:[^"]+"|<span class="quiet">[\d.]+ [kM]?B</span>')
SLOWER, LARGER = 1.3, 1.2
TEXTS: dict[str, str] = {}


def rounded(text: str) -> str:
    """Text whose decimal numbers have six digits: the order of a sum shows in the last ones."""
    return DECIMAL.sub(lambda found: f"{float(found[0]):.6g}", text)


def digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    found = hashlib.sha256(rounded(text).encode()).hexdigest()[:10]
    TEXTS[found] = rounded(text)
    return found


def printed(*arguments: str) -> str:
    """What a command prints, 100 columns wide and without colour, and its exit code.

    Not what it logs on the way, every ten seconds.
    """
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})
    done = runner.invoke(cli, arguments, standalone_mode=False)
    if isinstance(done.exception, ScalebenchError | click.ClickException):
        return f"{done.exception}\nexit {int(done.exception.exit_code)}\n"
    if done.exception is not None:
        raise done.exception
    told = re.sub(r"^scalebench: \d+ s: .*\n", "", done.output, flags=re.MULTILINE)
    return f"{told}exit {int(done.return_value or 0)}\n"


def slowed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary whose largest rows are slower, larger and send a byte more."""
    most = max((row["world_size"] for row in summary["rows"]), default=0)
    return {**summary, "rows": [_slowed(row, most) for row in summary["rows"]]}


def _slowed(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    if row["world_size"] < most:
        return dict(row)
    changed = {"samples": [_times(one) for one in row["samples"]]}
    for name, by in (("step_s", SLOWER), ("efficiency", 1 / SLOWER)):
        found = row[name] or {}
        ends = {k: found[k] * by for k in ("value", "low", "high") if found.get(k) is not None}
        changed[name] = {**found, **ends} if found else None
    if row["peak_memory_bytes"]:
        changed["peak_memory_bytes"] = int(row["peak_memory_bytes"] * LARGER)
    if row["wire_bytes"]:
        changed["wire_bytes"] = row["wire_bytes"] + 1
    return {**row, **changed}


def _times(samples: Mapping[str, Any]) -> dict[str, Any]:
    """One launch's samples, each step slower."""
    scaled = {k: [t * SLOWER for t in samples[k] or []] for k in ("step_s", "pace_s")}
    means = {"mean_s": samples["mean_s"] * SLOWER} if samples["mean_s"] else {}
    return {**samples, **{k: v for k, v in scaled.items() if samples[k]}, **means}


def pieces(page: str) -> Iterator[tuple[str, str]]:
    """Name and text of every section, figure and figure's data of a page."""
    body = DOWNLOAD.sub("", page[page.index("<body") :])
    for i, text in enumerate(PIECE.split(body)):
        found = NAME.search(text[:300])
        yield f"page {i} {found[1] if found else ''}".rstrip(), text


def of_page(packed: str) -> str:
    """A page of a gallery as it is unpacked: without the scripts and the style that all share."""
    (content,) = re.findall('id="page">([^<]+)<', packed)
    return gzip.decompress(base64.b64decode(content)).decode()


def of_run(name: str) -> tuple[dict[str, str], str]:
    """Digests and tables of one run of the gallery, from its raw records."""
    run = load_run(GALLERY / name)
    summary = summarise(run)
    whole = json.loads(summary.model_dump_json())
    rows = whole.pop("rows")
    found = {f"summary {k}": digest(v) for k, v in whole.items()}
    found |= {f"row {k}": digest([row[k] for row in rows]) for k in (rows[0] if rows else ())}
    for form in FORMATS.keys() - {"parquet"}:
        try:
            found[f"export {form}"] = digest(FORMATS[form].export(run, summary))
        except ScalebenchError as error:
            found[f"export {form}"] = digest(str(error))
    page_data = gather(run, summary)
    found |= {f"page data {k}": digest(repr(v)) for k, v in vars(page_data).items()}
    found |= {
        k: digest(v) for k, v in pieces(of_page(render_page([summary], [page_data], shared=True)))
    }
    found["brief table"] = digest(render_table(summary))
    shown = render_table(summary, verbose=True)
    with _files(old={**whole, "rows": rows}, new=slowed({**whole, "rows": rows})) as files:
        found["gate json"] = digest(_gate(files, "--json"))
        gated = _gate(files)
    return found, f"{shown}\n{gated}"


def _gate(files: Mapping[str, Path], *options: str) -> str:
    told = printed("gate", *options, "--baseline", str(files["old"]), str(files["new"]))
    return told.replace(str(files["old"].parent), "FOLDER")


@contextlib.contextmanager
def _files(**contents: Any) -> Iterator[dict[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        paths = {name: Path(folder) / f"{name}.json" for name in contents}
        for name, path in paths.items():
            path.write_text(json.dumps(contents[name]))
        yield paths


def of_trace(name: str) -> tuple[dict[str, str], str]:
    """Digests and table of the traces of one job."""
    files = [str(path) for path in sorted((GOLDEN / "traces").glob(TRACES[name]))]
    found = {
        f"json {w}": printed("trace", "--json", "--window", w, *files) for w in ("file", "steps")
    }
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        printed("trace", "--html", str(page), *files)
        found |= dict(pieces(page.read_text()))
    return {k: digest(v) for k, v in found.items()}, printed("trace", *files)


def of_log(name: str) -> tuple[dict[str, str], str]:
    """Digest and table of one log of nccl-tests."""
    given = ["calibrate", "--import", str(GOLDEN / "nccl_tests" / name)]
    (ranks,) = re.findall(r"\d+(?=ranks?_)", name)[-1:] or ["8"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "links.json"
        told = printed(*given, "--op", "all_reduce", "--world-size", ranks, "--out", str(out))
        told = told.replace(folder, "FOLDER")
        profile = json.loads(out.read_text()) if out.exists() else {}
        return {k: digest(v) for k, v in profile.items() if k not in ("created", "version")}, told


def of_search(name: str) -> tuple[dict[str, str], str]:
    """Digests and table of a search."""
    options = SEARCHES[name].split()
    # In a folder without runs: a search learns from those that it finds.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        told = re.sub(r'"took_s": *[^,}]*', "", printed("search", *options, "--json"))
        page, suite = Path(folder) / "page.html", Path(folder) / "suite.py"
        table = printed("search", *options, "--html", str(page), "--suite", str(suite))
        found = {"json": digest(told)}
        if page.exists():
            found |= {k: digest(v) for k, v in pieces(page.read_text())}
        found["suite"] = digest(suite.read_text() if suite.exists() else "")
        return found, table.replace(folder, "FOLDER")


def of_projection(name: str) -> tuple[dict[str, str], str]:
    """Digest and table of a run's projection."""
    run, *options = PROJECTIONS[name].split()
    given = ["project", str(GALLERY / run), *options]
    return {"json": digest(printed(*given, "--json"))}, printed(*given)


KINDS: dict[str, Callable[[str], tuple[dict[str, str], str]]] = {
    "run": of_run,
    "trace": of_trace,
    "log": of_log,
    "search": of_search,
    "project": of_projection,
}


def recorded() -> list[tuple[str, str]]:
    """Kind and name of everything that is analysed again."""
    runs = sorted(path.parent.name for path in (ROOT / GALLERY).glob("*/run.json"))
    logs = sorted(path.name for path in (ROOT / GOLDEN / "nccl_tests").glob("*.txt"))
    names = {"run": runs, "trace": TRACES, "log": logs, "search": SEARCHES, "project": PROJECTIONS}
    return [(kind, name) for kind, of_kind in names.items() for name in of_kind]


def stored(kind: str, name: str) -> tuple[Path, Path]:
    """The files of the digests and of the tables."""
    stem = STORED / f"{kind}.{name.removesuffix('.txt')}"
    return Path(f"{stem}.json"), Path(f"{stem}.txt")


def write_texts(folder: Path) -> None:
    """The whole text behind every digest, a file each."""
    for kind, name in recorded():
        found, text = KINDS[kind](name)
        inside = folder / f"{kind}.{name}"
        inside.mkdir(parents=True, exist_ok=True)
        (inside / "tables").write_text(text)
        for k, v in found.items():
            (inside / k.replace("/", "_")).write_text(TEXTS[v].replace(",", ",\n"))


def main(folder: str = "") -> None:
    """Renew what is stored, or write the texts behind it to a folder."""
    os.chdir(ROOT)
    if folder:
        return write_texts(Path(folder).absolute())
    STORED.mkdir(exist_ok=True)
    for old in STORED.iterdir():
        old.unlink()
    for kind, name in recorded():
        digests, tables = stored(kind, name)
        found, text = KINDS[kind](name)
        digests.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
        tables.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
