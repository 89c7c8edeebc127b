"""What a backward pass in two calls takes longer here, from measured zero-bubble pipelines."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalebench.analysis.search.scores import choice_of_row
from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.search.choice import columns_of
from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.memory import stage_table
from scalebench.costmodel.search.step.parts import step_parts
from scalebench.records.summary import Row


def split_backward_s(job: Job, rows: Sequence[Row]) -> float:
    """Return what each microbatch of the whole model takes longer, seconds; 0: not measured.

    The measured step less the predicted one, for each microbatch; the median over the rows. One
    rank does not show it: the first stage's backward pass is one call.

    Args:
        job: Its speed and links are those that the rows were measured with; ``split_s`` is 0.
        rows: Of a run.
    """
    found = []
    for row in rows:
        if row.workload != job.model.name or row.status != "ok" or row.step_s is None:
            continue
        choice = choice_of_row(row)
        if isinstance(choice, str) or choice.schedule != "zero-bubble":
            continue
        if choice.checkpointing != "none" or choice.precision not in job.speed.precisions:
            continue
        here = replace(job, world_size=row.world_size, batch=row.global_batch)
        of = columns_of([choice])
        try:
            predicted_s = float(step_parts(here, of).step_s[0])
        except NoFit:
            continue
        share = float(stage_table(here, of)[0][0]) / job.model.layers
        found.append(max(row.step_s.value - predicted_s, 0.0) / choice.microbatches / share)
    return float(np.median(found)) if found else 0.0
