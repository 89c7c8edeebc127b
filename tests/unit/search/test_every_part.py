"""Every candidate of small spaces has the memory and the parts that a plain program counts."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from scalebench.search.choice import Choice, choices
from scalebench.search.job import Recomputing
from scalebench.search.prediction.memory import (
    activation_bytes,
    gathered_bytes,
    memory_bytes,
    received_bytes,
    stage_table,
    state_bytes,
)
from scalebench.search.prediction.step import step_parts
from scalebench.search.ranking import Found
from scalebench.search.space import Candidates, candidates, joined, meshes
from tests.examples import cases
from tests.unit.search.jobs import ROUTED, SMALL, SPEED, job
from tests.unit.search.one_candidate import OneCandidate

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


@functools.cache
def some_of(name: str, most: int = 600) -> Candidates:
    every = joined(list(candidates(JOBS[name], meshes(JOBS[name]))))
    drawn = np.random.default_rng(1).permutation(len(every))[:most]
    return every.take(drawn)


@functools.cache
def as_choices(name: str) -> list[Choice]:
    of, made = JOBS[name], some_of(name)
    return choices(of, Found(made, step_parts(of, made), memory_bytes(of, made)))


@cases("name", *JOBS)
def test_every_part_of_a_step_is_that_of_a_plain_program(name: str) -> None:
    of = JOBS[name]
    for choice in as_choices(name):
        expected = OneCandidate(of, choice).parts_s()
        assert choice.parts_s == pytest.approx(expected, rel=1e-9, abs=1e-15), choice
        assert choice.step_s == pytest.approx(sum(expected.values()))


@cases("name", *JOBS)
def test_every_part_of_the_memory_is_that_of_a_plain_program(name: str) -> None:
    of = JOBS[name]
    made = some_of(name)
    layers, _ = stage_table(of, made)
    found = {
        "state": state_bytes(of, made, layers),
        "gathered": gathered_bytes(of, made, layers),
        "activations": activation_bytes(of, made, layers),
        "received": received_bytes(of, made),
    }
    for i, choice in enumerate(as_choices(name)):
        expected = OneCandidate(of, choice).memory_parts()
        assert choice.memory_bytes == pytest.approx(sum(expected.values()))
        for part, column in found.items():
            assert column[i] == pytest.approx(expected[part]), (part, choice)
