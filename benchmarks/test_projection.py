"""A large projection: what predicting one step of 4,096 ranks with 200 buckets costs.

Target: under 0.2 s.
"""

import numpy as np

from benchmarks.verdict import against_limit
from scalebench.costmodel.links.fitting.fit import fit_links
from scalebench.costmodel.links.laws import ring_all_reduce
from scalebench.costmodel.links.points import LinkPoint
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape, predict_step

TARGET_S = 0.2
NUM_BUCKETS = 200


def links() -> LinkModel:
    """Fits at 2, 4 and 8 ranks of 20 sizes with 3 % noise."""
    random = np.random.default_rng(0)
    points = []
    for n in (2, 4, 8):
        for size in 8 * 4 ** np.arange(13):
            exact = ring_all_reduce(n).time_s(int(size), 1e-5, 1e10)
            points.append(
                LinkPoint(
                    op="all_reduce",
                    dtype="float32",
                    world_size=n,
                    size_bytes=int(size),
                    time_s=exact * float(np.exp(0.03 * random.standard_normal())),
                )
            )
    return LinkModel(fit_links(points).fits)


def step() -> StepShape:
    """A step of 1 s whose backward hands over 200 buckets, no two of the same size."""
    ready = np.linspace(0.3, 0.9, NUM_BUCKETS)
    requests = [
        CommRequest("all_reduce", 1_000_000 + i, float(moment), 0.9)
        for i, moment in enumerate(ready)
    ]
    return StepShape(tuple(requests), 0.9, 0.1, 64)


def test_a_step_of_4096_ranks(benchmark) -> None:
    """From the shape at N=1 and the fitted links to the step with its interval."""
    model, shape = links(), step()
    result = benchmark.pedantic(
        predict_step, (shape, model.time, 4096, 16), rounds=20, warmup_rounds=1
    )
    assert len(result.times) == NUM_BUCKETS
    print(f"\n  median {against_limit(benchmark.stats.stats.median, TARGET_S)}")
