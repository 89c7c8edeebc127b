"""The shape of a pipeline's step at N=1, from its traces: what passes, and what lies between them.

Tracing makes a step longer; every part of it is shortened in proportion to the clean one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.step_shape import NoShape
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.pipelines.stage_split import Layers, TiedParameter
from scalebench.costmodel.pipelines.step import PipelineShape
from scalebench.spec import Pipeline


def pipeline_shape_of(strategy: Pipeline, launches: Sequence[LaunchAttribution]) -> PipelineShape:
    """Return the mean over launches at N=1.

    Raises:
        NoShape: No launch was traced whole, or the layers' costs are not known.
    """
    found = [_of_launch(launch) for launch in launches if launch.pipelines]
    if not found:
        raise NoShape("no launch of the pipeline at N=1 was traced completely")
    layers = layers_of(launches[0].result.ranks[0].facts)
    kinds = found[0][0]
    return PipelineShape(
        strategy=strategy,
        layers=layers,
        passes_s={kind: float(np.mean([passes[kind] for passes, *_ in found])) for kind in kinds},
        between_s=float(np.mean([between for _, between, _ in found])),
        after_s=float(np.mean([after for *_, after in found])),
        num_samples=launches[0].result.cell.rank_batch,
    )


def _of_launch(launch: LaunchAttribution) -> tuple[dict[str, float], float, float]:
    """Return the passes by kind, what lies before each, and what comes after them, seconds."""
    pipeline, trace = launch.pipelines[0], launch.traces[0]
    lengths, afters, actions = [], [], 0
    for step in launch.typical_steps:
        start, end = trace.steps[step]
        done = [action for action in trace.actions if action.step == step]
        if not done:
            raise NoShape("no launch of the pipeline at N=1 was traced completely")
        actions = len(done)
        lengths.append(end - start)
        afters.append(end - max(action.end_ns for action in done))
    traced_s, after_s = float(np.mean(lengths)) / 1e9, float(np.mean(afters)) / 1e9
    shorter = launch_step_s(launch.result) / traced_s
    passes: dict[str, float] = {}
    for (kind, _), seconds in pipeline.seconds.items():
        passes[kind] = passes.get(kind, 0.0) + shorter * seconds
    busy_s = pipeline.strategy.microbatches * sum(passes.values())
    between_s = max(shorter * (traced_s - after_s) - busy_s, 0.0) / actions
    return passes, between_s, shorter * after_s


def layers_of(facts: Mapping[str, Any]) -> Layers:
    """Return what a rank's fact ``layers`` says.

    Raises:
        NoShape: It says nothing, or not the sizes of the layers' outputs.
    """
    told: Any = facts.get("layers")
    try:
        layers = Layers(
            costs=tuple(map(float, told["costs"])),
            output_bytes=tuple(map(int, told["output_bytes"])),
            tied=tuple(
                TiedParameter(tuple(map(int, one["layers"])), int(one["num_bytes"]))
                for one in told["tied"]
            ),
            parameter_bytes=tuple(map(int, told.get("parameter_bytes", ()))),
            kept_bytes=tuple(map(int, told.get("kept_bytes", ()))),
        )
    except (TypeError, KeyError, ValueError):
        raise NoShape("the run does not record what the pipeline's layers cost") from None
    if not sum(layers.costs) > 0 or len(layers.output_bytes) != len(layers.costs):
        raise NoShape("the size of the tensors between the pipeline's layers is not known")
    return layers
