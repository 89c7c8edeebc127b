"""Every part of the step and of the memory of all configurations of small spaces, as recorded.

When they were recorded, a second program, which counted one configuration in plain numbers and
wrote out every message, had the same. ``python -m tests.unit.search.test_every_part`` renews them.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalebench.search.candidates import joined
from scalebench.search.prediction import memory
from scalebench.search.prediction.step import PARTS, step_parts
from scalebench.search.space import Recomputing, candidates, meshes
from tests.examples import cases
from tests.unit.search.jobs import ROUTED, SMALL, SPEED, job

RECORDED = Path(__file__).parents[2] / "recorded" / "search_parts.json"
MACHINERY = {"tensor": 1e-3, "shard": 2e-3, "data": 3e-3, "pipeline": 4e-3, "context": 5e-3}
ODD = replace(SMALL, layers=6, kv_heads=2, inner=640, gated=True, tied=False, vocabulary=1024)
RECOMPUTING = {"selective": Recomputing(0.3, 1e-3), "full": Recomputing(1.2, 2e-3)}
THREES = replace(SMALL, layers=7, heads=6, kv_heads=2, width=252, context=126, vocabulary=510,
                 inner=700)  # fmt: skip
JOBS = {
    "dense": job(),
    "on gpus": job(16, 48, device="cuda", gathered_bytes_each=2),
    "odd": job(8, 24, model=ODD, sequence=False, receives_ahead=False, held_bytes=7e6,
               activation_ratio=1.5, speed=replace(SPEED, axis_s=MACHINERY)),
    "routed": job(16, 16, model=replace(ROUTED, gated=True), gathered_bytes_each=2,
                  speed=replace(SPEED, axis_s={"expert": 1e-3})),
    "scattered": job(8, 24, model=ODD, sequence=False, scatters_messages=True,
                     speed=replace(SPEED, recomputing=RECOMPUTING, split_s=4e-3)),
    "slow": job(8, 32, device="cuda", speed=replace(SPEED, flop_s={"float32": 1e-10})),
    # Groups of three and six, tokens that four ranks do not divide, and bounds on both sides of
    # each pass: FLOPs of some microbatches take as long as their messages.
    "threes": job(12, 36, device="cuda", model=THREES, buckets_mb=(0.3, 2.0, 25.0),
                  speed=replace(SPEED, flop_s={"float32": 3e-12, "bfloat16": 7e-12},
                                split_s=1e-3, recomputing=RECOMPUTING)),
    "routed threes": job(12, 24, gathered_bytes_each=2, selective_sends_again=False,
                         scatters_messages=True, sequence=False, receives_ahead=False,
                         model=replace(THREES, experts=6, top_k=3, layers=3),
                         speed=replace(SPEED, axis_s={**MACHINERY, "expert": 6e-3})),
}  # fmt: skip


def parts_of(name):
    """Return the mean and the root of the mean square of each part over all configurations."""
    of = JOBS[name]
    made = joined(list(candidates(of, meshes(of))))
    layers, _ = memory.stage_table(of, made)
    step = step_parts(of, made)
    columns = {part: getattr(step, part) for part in PARTS} | {"step_s": step.step_s}
    for part in ("state_bytes", "gathered_bytes", "activation_bytes"):
        columns[part] = getattr(memory, part)(of, made, layers)
    columns["received_bytes"] = memory.received_bytes(of, made)
    columns["memory_bytes"] = memory.memory_bytes(of, made)
    return {
        part: [float(np.mean(one)), float(np.sqrt(np.mean(np.square(one))))]
        for part, one in columns.items()
    }


@cases("name", *JOBS)
def test_every_part_of_the_step_and_of_the_memory_is_what_it_was(name):
    recorded = json.loads(RECORDED.read_text())[name]
    found = parts_of(name)
    assert found.keys() == recorded.keys()
    for part, numbers in found.items():
        assert numbers == pytest.approx(recorded[part], rel=1e-9), part


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: parts_of(name) for name in JOBS}, indent=1) + "\n")
