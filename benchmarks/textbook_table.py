"""The tables that textbooks print, made by one command: memory and speedup of the usual strategies.

    python -m benchmarks.textbook_table docs/scaling-tables.md

Runs `benchmarks.textbook_suite` at 1 and 2 ranks (measured), one rank's shard of larger jobs alone
(measured shard), and predicts the rest. Each number says which of the three it is. Writes the part
of the page between its two marks.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scalebench import units
from scalebench.costmodel.memory import predict_state_bytes
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.spec import Ddp, Fsdp, Mesh, Plain, Strategy, Zero1
from scalebench.spec.presets import PRESETS, GptShape

BEGIN, END = "<!-- made by benchmarks/textbook_table.py -->", "<!-- end -->"
SUITE = Path(__file__).parent / "textbook_suite.py"
MEASURED_SIZES = "1,2"
SHARD_SIZES = "4,8,16,32"
LARGE = "gpt-7b"

LARGE_ROWS: tuple[tuple[str, Strategy, int], ...] = (
    ("one GPU", Plain(), 1),
    ("DDP", Ddp(), 8),
    ("ZeRO-1", Zero1(), 8),
    ("FSDP (ZeRO-3)", Fsdp(), 8),
    ("FSDP (ZeRO-3)", Fsdp(), 64),
    ("FSDP with offload to the host", Fsdp(cpu_offload=True), 8),
    ("tensor 8", Mesh(tensor=8, sequence=True, loss=True), 8),
    ("shard 8 × tensor 8", Mesh(shard=None, tensor=8, sequence=True, loss=True), 64),
    ("data 8 × shard 8 × tensor 8", Mesh(shard=8, tensor=8, sequence=True, loss=True), 512),
)


def scalebench(*arguments: str) -> str:
    """Return what a command of scalebench prints; leaves with its error where it fails."""
    command = [sys.executable, "-m", "scalebench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} left with {done.returncode}:\n{done.stderr}")
    return done.stdout


def large_table() -> Iterator[str]:
    """Yield the table of a large model's state, all predicted."""
    shape = PRESETS[LARGE]
    assert isinstance(shape, GptShape)
    billions = shape.num_parameters / 1e9
    yield f"### Memory of a model with {billions:.1f} billion parameters ({LARGE})"
    yield ""
    yield "| strategy | GPUs | parameters, gradients, AdamW on each GPU | |"
    yield "| --- | --- | --- | --- |"
    for name, strategy, world_size in LARGE_ROWS:
        size = units.bytes_(state_bytes(strategy, shape, world_size))
        yield f"| {name} | {world_size} | {size} | predicted |"


def state_bytes(strategy: Strategy, shape: GptShape, world_size: int) -> int:
    """Return what a rank keeps of a model's state between steps, bytes."""
    if not isinstance(strategy, Mesh):
        return predict_state_bytes(strategy, shape.num_parameters, world_size)
    model = model_of_preset(shape, 1, strategy.sequence)
    own = model.local_elements(strategy.ranks_per_group(world_size))
    return predict_state_bytes(strategy, own // strategy.ranks_per_shard_group(world_size))


def small_table(rows: Sequence[dict[str, Any]], projected: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of the model that was run: measured rows, then projected ones."""
    plain_s = next(row["step_s"]["value"] for row in rows if row["strategy"] == "plain")
    lines = [
        "### Memory and speedup of a small model (gpt-tiny, global batch 32, two CPU cores)",
        "",
        "| strategy | ranks | peak memory | | speedup | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    measured = [(row["case"], row["world_size"], *_measured(row, plain_s)) for row in rows]
    beyond = [(row["case"], row["world_size"], *_projected(row, plain_s)) for row in projected]
    order = list(dict.fromkeys(row["case"] for row in rows))
    for found in sorted([*measured, *beyond], key=lambda one: (order.index(one[0]), one[1])):
        lines.append("| " + " | ".join(map(str, found)) + " |")
    return lines


def _measured(row: dict[str, Any], plain_s: float) -> tuple[str, str, str, str]:
    if row["step_s"] is None:
        return "–", row["reason"] or row["status"], "–", ""
    memory = units.bytes_(row["peak_memory_bytes"])
    return memory, "measured", f"{plain_s / row['step_s']['value']:.2f}", "measured"


def _projected(row: dict[str, Any], plain_s: float) -> tuple[str, str, str, str]:
    share = row.get("share") or {}
    peak = share.get("peak_memory_bytes")
    memory = ("–", "not measured") if peak is None else (units.bytes_(peak), "measured shard")
    if row["step_s"] is None:
        return *memory, "–", row["reason"] or "not predicted"
    from_shard = "predicted from the shard" if share.get("step_s") else "predicted"
    return *memory, f"{plain_s / row['step_s']:.2f}", from_shard


def main() -> None:
    """Measure, predict, and write the tables into the page."""
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        scalebench("run", str(SUITE), "--gpus", MEASURED_SIZES, "--no-report", "--out", run)
        rows = json.loads(scalebench("show", run, "--json"))["rows"]
        given = ("project", run, "--gpus", SHARD_SIZES, "--measure-shard", "--json")
        projected = json.loads(scalebench(*given))["rows"]
    tables = [*large_table(), "", *small_table(rows, projected)]
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n" + "\n".join(tables) + f"\n\n{END}{after}")


if __name__ == "__main__":
    main()
