"""Is the search's choice the fastest? Three links and two models, on virtual hosts.

``python -m benchmarks.search_regret [docs/search.md]`` runs all six settings and writes their table
into the document. ``--only 200mbit,gpt-tiny`` runs one, ``--table`` none. The results so far are
kept in ``reports/search-regret.json``, so that settings can be run one at a time; each takes three
minutes on a quiet machine of two cores. A setting is two commands: a search, which measures links
and one rank, and a search from that run with ``--measure``.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LINKS = ("50mbit", "200mbit", "1gbit")
WORKLOADS = ("gpt-tiny", "gpt-moe-tiny")
CPUS_PER_RANK = "0.8"
NUM_HOSTS = 2
BEST = 3
RESULTS = Path("reports/search-regret.json")
BEGIN, END = "<!-- search_regret.py: begin -->", "<!-- search_regret.py: end -->"


def command(link: str, workload: str, *more: str) -> list[str]:
    """Return a search on virtual hosts."""
    return [
        *(sys.executable, "-m", "scalebench", "search", "--gpus", str(NUM_HOSTS)),
        *("--workload", workload),
        *("--launcher", "lab", "--link", link, "--cpus-per-rank", CPUS_PER_RANK),
        *("--json", *more),
    ]


def measure(link: str, workload: str) -> dict[str, Any]:
    """Search and train the best; return the result as its JSON has it."""
    searched = _json_of(command(link, workload))
    return _json_of(
        command(link, workload, "--measure", str(BEST), "--memory-limit", limit(searched))
    )


def _json_of(asked: list[str]) -> dict[str, Any]:
    done = subprocess.run(asked, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def limit(searched: dict[str, Any]) -> str:
    """Return a memory limit that the best that can be trained fit, and others do not."""
    largest = max(one["memory_bytes"] for one in searched["trained"][:BEST])
    return f"{math.ceil(largest * (1 + searched['margin']) / 1e5) * 100}kB"


def row_of(link: str, workload: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return what the table has of a result; a setting that has one already is replaced."""
    measured = result["measured"]
    return {
        "link": link,
        "workload": workload,
        "typical_error": result["error"],
        **{name: measured[name] for name in ("regret", "rank_correlation", "error", "rows")},
    }


def stored() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def store(row: dict[str, Any]) -> None:
    """Keep a row."""
    others = [r for r in stored() if (r["link"], r["workload"]) != (row["link"], row["workload"])]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([*others, row], indent=1))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown; a setting that was not run is not in it."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = (
        *("link", "model", "first choice", "fastest measured"),
        *("regret", "rank correlation", "error", "rejected"),
    )
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for link in LINKS:
        for workload in WORKLOADS:
            for row in rows:
                if (row["link"], row["workload"]) == (link, workload):
                    yield _line(row)


def _line(row: dict[str, Any]) -> str:
    trained = [one for one in row["rows"] if one["measured_s"] is not None]
    allowed = [one for one in trained if one["picked"] != "rejected"]
    fastest = min(allowed, key=lambda one: one["measured_s"]) if allowed else None
    rejected = next((one for one in row["rows"] if one["picked"] == "rejected"), None)
    cells = [
        row["link"],
        row["workload"],
        _named(row["rows"][0]),
        _named(fastest) if fastest else "–",
        _number(row["regret"], 3),
        _number(row["rank_correlation"], 2),
        "–" if row["error"] is None else f"{100 * row['error']:.0f} %",
        _ending(rejected),
    ]
    return f"| {' | '.join(cells)} |"


def _named(one: dict[str, Any]) -> str:
    step = "–" if one["measured_s"] is None else f"{1000 * one['measured_s']:.0f} ms"
    return f"{one['case']} {step}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _ending(rejected: dict[str, Any] | None) -> str:
    if rejected is None:
        return "none"
    said = {True: "fits", False: "does not fit", None: "not known"}[rejected["fits"]]
    return f"{rejected['case']} {said}"


def write(document: Path, text: str) -> None:
    """Put the table between its marks."""
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("document", nargs="?", type=Path, help="the document to write into")
    parser.add_argument("--only", metavar="LINK,MODEL", help="one setting")
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    asked = parser.parse_args()
    settings = [(link, workload) for link in LINKS for workload in WORKLOADS]
    if asked.only is not None:
        settings = [one for one in settings if ",".join(one) == asked.only]
        if not settings:
            parser.error(
                f"--only {asked.only}: links {', '.join(LINKS)}; models {', '.join(WORKLOADS)}"
            )
    for link, workload in [] if asked.table else settings:
        store(row_of(link, workload, measure(link, workload)))
    print(table(stored()))
    if asked.document is not None:
        write(asked.document, table(stored()))


if __name__ == "__main__":
    main()
