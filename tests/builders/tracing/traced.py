"""Traced launches made by hand: every number in them is known. Times are milliseconds."""

from collections.abc import Sequence

from scalebench.records.measured.rank import Block, RankRecord
from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.records.run import CellResult
from tests.builders.runs import make_cell, make_record, make_result

MS = 1_000_000

Span = tuple[float, float]


def flat(spans: Sequence[Span]) -> list[int]:
    return [round(edge * MS) for span in spans for edge in span]


def make_operation(start: float, end: float, step: int = 0, **changes) -> TracedOperation:
    fields = {
        "kind": "all_reduce",
        "name": "gloo:all_reduce",
        "step": step,
        "ordinal": 0,
        "start_ns": round(start * MS),
        "end_ns": round(end * MS),
        "num_bytes": 1000,
        "group_size": 2,
        "phase": "backward",
    }
    return TracedOperation(**{**fields, **changes})


def make_trace(
    operations: Sequence[TracedOperation] = (),
    compute: Sequence[Span] = (),
    steps: Sequence[Span] = ((0, 100),),
    origin: float = 0,
    **changes,
) -> Trace:
    """A trace of one step of 100 ms, unless said otherwise."""
    return Trace(
        origin_ns=round(origin * MS),
        steps=[(round(a * MS), round(b * MS)) for a, b in steps],
        operations=list(operations),
        compute=flat(compute),
        **changes,
    )


def make_traced_record(
    rank: int, trace: Trace, clean: float = 100, paired: float | None = None, **changes
) -> RankRecord:
    """A rank with one warm-up step, four clean ones, and one round of one counted step each.

    The first step of every block takes 5 s and counts for nothing. The traced block has as many
    counted steps as the trace has.
    """
    lengths = [(b - a) / MS for a, b in trace.steps]
    blocks, step_s = [Block(phase="warmup", first=0, count=1)], [5.0]
    for phase, counted in (
        ("clean", [clean] * 4),
        ("paired", [clean if paired is None else paired] * len(lengths)),
        ("traced", lengths),
        ("bare", [clean] * len(lengths)),
    ):
        blocks.append(Block(phase=phase, first=len(step_s), count=len(counted) + 1))
        step_s += [5.0, *(ms / 1e3 for ms in counted)]
    loss = [1.0] * len(step_s)
    fields = {"step_s": step_s, "loss": loss, "blocks": blocks, "trace": trace}
    return make_record(rank, **{**fields, **changes})


def make_traced_result(*records: RankRecord, case: str = "ddp", **changes) -> CellResult:
    cell = make_cell(case, len(records), **changes)
    return make_result(cell, ranks=list(records))


def on_gpu(result: CellResult) -> CellResult:
    """The same launch on a GPU."""
    cell = result.cell.model_copy(update={"device": "cuda"})
    return result.model_copy(update={"cell": cell})
