"""Two traced steps of a strategy, as the analysis of a launch sees them, on every rank."""

from typing import Any

import torch.distributed as dist

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.axes import axes_of_row, predicted_operations
from scalebench.records.measured.rank import Block, RankRecord
from scalebench.records.run import CellResult
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import inspect
from scalebench.worker.measure.rounds import collective_group
from scalebench.worker.measure.tracing import trace_record, traced
from scalebench.worker.strategies import build_training


def everybodys(text):
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts


def traced_launch(context, training, batches, known):
    """Train on each batch in a traced step; the records of all ranks make a launch.

    Args:
        context: The rank's.
        training: Of the strategy.
        batches: A step each.
        known: Size of each process group that the strategy does not name.
    """
    with traced(context.device, known) as capture:
        for batch in batches:
            with capture.step():
                training.step(batch)
    record = RankRecord(
        rank=context.rank,
        local_rank=context.rank,
        pid=0,
        host="here",
        trace=trace_record([capture], training.groups, training.axes),
        step_s=[1.0] * len(batches),
        blocks=[Block(phase="traced", first=0, count=len(batches))],
        facts=training.facts,
    )
    records = [RankRecord.model_validate_json(r) for r in everybodys(record.model_dump_json())]
    return LaunchAttribution(CellResult(cell=context.cell, status="ok", started="", ranks=records))


def by_law(context):
    """Verify a cell as a launch does it; train it for three steps, the last two traced.

    Return the inspection, the launch, and a report: what is sent in a step, in order, and what the
    laws say of it.
    """
    inspection, workload = inspect(context), fresh_workload(context)
    training = build_training(workload, context)
    feed = iter(workload.batches)
    batches = [next(feed) for _ in range(3)]
    training.step(batches[0])
    known = collective_group(training, context.cell.world_size)
    launch = traced_launch(context, training, batches[1:], known)
    trace = launch.result.ranks[context.rank].trace
    sent = sorted(trace.operations, key=lambda op: op.start_ns)
    return (
        inspection,
        launch,
        {
            "verification": inspection.verification.model_dump(),
            "facts": training.facts,
            "operations": [
                (op.kind, op.num_bytes, op.axis, op.group_size)
                for op in sent
                if (op.group_size or 0) > 1 and op.kind != "recv"
            ],
            "predicted": [
                (op.op.removesuffix("_recv_ring"), op.num_bytes, op.axis, op.num_ranks)
                for op in predicted_operations(launch.result, context.rank)
            ],
            "axes": [one.model_dump() for one in axes_of_row([launch], context.rank)],
        },
    )
