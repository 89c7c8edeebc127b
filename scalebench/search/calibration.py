"""The measurement a search starts from: the newest here that fits, or a short one that is made."""

from dataclasses import replace
from pathlib import Path

from scalebench.analysis.run import StoredRun, load_run
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.fitted import LinkModel
from scalebench.errors import UsageError
from scalebench.records.files import read_text
from scalebench.records.paths import default_runs_folder
from scalebench.records.summary import Summary
from scalebench.search.choice import CHECKPOINTING_OF
from scalebench.search.model import AXES_OF_WHOLE, SearchModel, WholeModel
from scalebench.search.prediction.links import CalibratedLinks
from scalebench.search.prediction.speed import measured_speed, plain_rows, whole_model
from scalebench.search.scores import activation_ratio, data_bytes, split_backward_s
from scalebench.search.space import Job, divisors
from scalebench.spec import (
    Case,
    Context,
    Ddp,
    Device,
    Expert,
    Fsdp,
    Mesh,
    Pipeline,
    Plain,
    StepPlan,
    Suite,
)
from scalebench.spec.world import VirtualHosts

SHORT = StepPlan(window_s=0.3, min_steps=4, rounds_s=0.3, max_warmup_s=3.0, long_step_s=0.5)
"""Slow links lengthen a step to seconds: such rows are not warmed up for long, and not traced."""


def find_run(
    model: SearchModel, device: Device, hosts: VirtualHosts | None
) -> tuple[StoredRun, Summary] | None:
    """Return the newest run here with the plain model on one rank and calibrated links.

    Args:
        model: Which the run has to have measured.
        device: Of its ranks.
        hosts: The virtual hosts that it ran on; None: none.
    """
    for folder in _runs_by_age():
        try:
            run = load_run(folder)
        except UsageError:
            continue
        spec = run.info.spec
        if (spec.device, spec.virtual_hosts) != (device, hosts) or run.link is None:
            continue
        if not any(cell.workload.name == model.name for cell in run.info.plan):
            continue
        summary = summarise(run)
        if plain_rows(summary.rows, model.name):
            return run, summary
    return None


def _runs_by_age() -> list[Path]:
    folders = [path.parent for path in default_runs_folder().glob("*/run.json")]
    real = {folder.resolve(): folder for folder in folders}
    return sorted(real, key=lambda folder: folder.name, reverse=True)


def calibration_suite(model: SearchModel, batch: int, ranks: int) -> Suite:
    """Return the short measurement: the plain model on some batches, and one case of each axis.

    The cases make the run calibrate the operations that a search asks for, and are what its step
    model is compared with.

    Args:
        model: Of the search.
        batch: Global batch, samples.
        ranks: On which the links are measured.
    """
    cases = [Case(name="plain", strategy=Plain())]
    if batch % ranks == 0:
        parts = {"plain-part": batch // ranks, "plain-one": 1}  # one: the smallest microbatch
        cases += [
            Case(name=name, strategy=Plain(), batch_size=size)
            for name, size in parts.items()
            if size < batch and (size > 1 or name == "plain-one")
        ]
        cases += [Case(name="ddp", strategy=Ddp()), Case(name="fsdp", strategy=Fsdp())]
        if model.experts > 1 and model.experts % ranks == 0:
            cases.append(Case(name="expert", strategy=Expert()))
    if not isinstance(model, WholeModel):
        cases += _recomputing(batch)
    if model.experts == 1:
        if model.heads % ranks == 0:
            cases.append(Case(name="tensor", strategy=Mesh(tensor=ranks, sequence=True, loss=True)))
            cases.append(Case(name="context", strategy=Context()))
        stages = max(n for n in divisors(ranks) if n <= model.layers)
        side_by_side = ranks // stages
        if stages > 1 and batch % (stages * side_by_side) == 0:
            pipeline = Pipeline(microbatches=stages, data_parallel=side_by_side)
            cases.append(Case(name="pipeline", strategy=pipeline))
            cases.append(Case(name="zero-bubble", strategy=_zero_bubble(batch, side_by_side)))
    return Suite(
        name="search-calibration",
        question=f"What does a search over meshes of {model.name} have to know of this machine?",
        cases=tuple(cases),
        workload=model.name,
        batch_size=batch,
        steps=SHORT,
        repeats=1,
    )


def _zero_bubble(batch: int, side_by_side: int) -> Pipeline:
    """Return a zero-bubble pipeline with a microbatch for each sample: what each pays shows."""
    return Pipeline(
        schedule="zero-bubble", microbatches=batch // side_by_side, data_parallel=side_by_side
    )


def _recomputing(batch: int) -> list[Case]:
    """Return what tells the time of each checkpointing: on the batch, and on one sample."""
    found = []
    for name, checkpointing in CHECKPOINTING_OF.items():
        if checkpointing:
            plain = Plain(checkpointing=checkpointing)
            found.append(Case(name=f"plain-{name}", strategy=plain))
            if batch > 1:
                found.append(Case(name=f"plain-{name}-one", strategy=plain, batch_size=1))
    return found


def calibrated_job(run: StoredRun, summary: Summary, model: SearchModel, job: Job) -> Job:
    """Return the job with the speed and links that a run measured; raises NoPlainRow."""
    if isinstance(model, WholeModel):
        model = whole_model(run, summary, model.name)
        job = replace(job, model=model)
    assert run.link is not None, "find_run and a run of several ranks have one"
    told = "; ".join((f"links as calibrated in run {run.info.run_id}", *run.link.cut_short))
    speed = measured_speed(run, summary, model)
    known = replace(
        job, speed=speed, links=CalibratedLinks(LinkModel(run.link.fits), told), device="cpu"
    )
    known = replace(known, device=run.info.spec.device)
    if isinstance(model, WholeModel):
        known = replace(known, axes=AXES_OF_WHOLE, checkpointing=("none",))
    held = data_bytes(plain_rows(summary.rows, model.name))
    known = replace(known, held_bytes=held)
    if not isinstance(model, WholeModel):
        speed = replace(known.speed, split_s=split_backward_s(known, summary.rows))
        known = replace(known, speed=speed)
    return replace(known, activation_ratio=activation_ratio(known, summary.rows))


def summaries_here() -> list[Summary]:
    """Return the summaries of all runs below reports/, as they are stored."""
    found = []
    for folder in _runs_by_age():
        try:
            found.append(Summary.model_validate_json(read_text(folder / "summary.json")))
        except (OSError, ValueError, UsageError):
            continue
    return found
