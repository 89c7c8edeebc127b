"""Search: what is asked, the job that comes of it, the result."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from scalebench.analysis.run import StoredRun, load_run
from scalebench.costmodel.links.fitted import LinkModel, NoFit
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.links.topology import TOPOLOGIES, load_topology
from scalebench.errors import EnvironmentUnfit, UsageError, unknown_name
from scalebench.records.files import read_model, read_text
from scalebench.records.summary import Summary
from scalebench.search.calibration import calibrated_job, find_run, summaries_here
from scalebench.search.candidates import (
    AXES,
    CHECKPOINTING,
    PRECISIONS,
    SCHEDULES,
    Candidates,
    Ints,
)
from scalebench.search.choice import choice_at, choices, strategy_of
from scalebench.search.devices.fit import (
    PUBLISHED_MARGIN,
    UNFITTED,
    Fit,
    activation_ratio,
    describe_fit,
    fit_rows,
)
from scalebench.search.devices.parameters import Parameters, chip, defaults
from scalebench.search.devices.products import measured_products
from scalebench.search.devices.sources import LogColumns, measured_rows
from scalebench.search.model import SearchModel, WholeModel, model_of_configuration
from scalebench.search.prediction.links import (
    LATER,
    CalibratedLinks,
    LinkValues,
    NominalLinks,
    SearchLinks,
    links_by_name,
)
from scalebench.search.prediction.memory import ranks_that_fit
from scalebench.search.prediction.speed import (
    DeviceType,
    NoPlainRow,
    assumed_speed,
    device_type,
    modelled_speed,
    short_name,
)
from scalebench.search.ranking import Ranking, search
from scalebench.search.result import SearchResult, result_of, what_would_fit
from scalebench.search.scores import Scores, model_of, peaks_of, scored_rows, scores_of
from scalebench.search.space import ComputeSpeed, Framework, Job
from scalebench.spec import Device
from scalebench.spec.presets import HF, PRESETS, GptShape, MoeShape, resolve_workload
from scalebench.spec.world import VirtualHosts

OnProgress = Callable[[str, object], None]
Calibrate = Callable[[SearchModel, int], Path]
"""Model and global batch → the folder of a short run that measured them."""

NO_SPEED = ComputeSpeed({"float32": 1.0}, 0.0, 0.0, "", {})
NO_LINKS = NominalLinks(TOPOLOGIES["dgx-a100"], "")


@dataclass(frozen=True)
class SearchRequest:
    """What a user asks of a search; None: what was measured here, or is usual.

    Attributes:
        links: A link profile (file), a topology (name or file).
        link: Names of links, see `links_by_name`.
        margin: Of memory, a ratio.
        hosts: Virtual hosts whose measurement is the start; None: ranks on this machine.
        run: The run to start from; None: the newest that fits, or a short one.
        measured: Rows of the user's own cluster, to which the model of ``gpu_type`` is fitted: a
            CSV file, or a run folder; or a trace of one of its GPUs.
        columns: Of rows that were read from logs, what these do not say.
        options: Of the framework, `Framework` as ``launch=compiled,attention=flash``.
    """

    world_size: int
    workload: str | None = None
    batch_size: int | None = None
    memory_limit_bytes: int | None = None
    gpu_type: str | None = None
    mfu: float | None = None
    links: str | None = None
    link: str | None = None
    ranks_per_node: int = 8
    margin: float | None = None
    hosts: VirtualHosts | None = None
    run: Path | None = None
    best: int = 10
    measured: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: str | None = None


class NothingFits(EnvironmentUnfit):
    """No configuration fits the memory; the text says what would."""


def carry_out(
    request: SearchRequest, calibrate: Calibrate, device: Device, on_progress: OnProgress
) -> SearchResult:
    """Search.

    Args:
        request: What is asked.
        calibrate: Makes the short measurement, where none is here.
        device: Of the ranks here.
        on_progress: Told what is done.

    Raises:
        UsageError: A name is unknown, or the ranks cannot be divided.
        NothingFits: The text says what would make the model fit.
    """
    _links(request)  # a name that is unknown is said before anything is measured
    on_gpu = request.gpu_type is not None
    shape = resolve_workload(request.workload or "gpt", "cuda" if on_gpu else device)
    model: SearchModel
    if isinstance(shape, GptShape | MoeShape):
        model = SearchModel.of_preset(shape)
    elif on_gpu and shape.name.startswith(HF):
        model = model_of_configuration(shape.name)
    elif on_gpu:
        names = sorted(n for n, s in PRESETS.items() if isinstance(s, GptShape | MoeShape))
        raise UsageError(
            f"--workload {shape.name} with --gpu-type: of a device that is not here, only "
            f"transformers can be predicted: {', '.join(names)}, hf:config.json. Give one of them, "
            "or leave out --gpu-type: then the workload is measured here."
        )
    else:
        model = WholeModel.of(shape.name)
    batch = request.batch_size or shape.batch_size
    start = Job(model, request.world_size, batch, NO_SPEED, NO_LINKS)
    fit = UNFITTED
    if on_gpu:
        job, fit = _assumed(request, start)
        scores = Scores()
    else:
        job, scores = _measured(request, start, calibrate, device, on_progress)
    job, margin_text, scores = _with_margin(job, request.margin, scores, on_gpu)
    on_progress("searching", None)
    began = time.perf_counter()
    try:
        ranking = search(job, request.best, on_progress, trains=Trainable(job))
    except NoFit as reason:
        raise EnvironmentUnfit(
            f"{reason}, and the search asks for it. Measure again without --run, or give --links."
        ) from reason
    took_s = time.perf_counter() - began
    if not ranking.num_fitting:
        raise NothingFits(_what_fits(job, ranking))
    spread = fit.interval(request.gpu_type or "", request.world_size)
    told = _assumptions(job)
    if request.batch_size is None and batch < request.world_size:
        told = (f"the workload's {batch} samples are fewer than ranks: give --batch-size", *told)
    return result_of(job, ranking, scores, margin_text, told, took_s, spread, fit.num_rows)


def _what_fits(job: Job, ranking: Ranking) -> str:
    least = choices(job, ranking.rejected)
    ranks = ranks_that_fit(job)
    return what_would_fit(job, ranking.smallest_bytes, least[0] if least else None, ranks)


def _assumed(request: SearchRequest, start: Job) -> tuple[Job, Fit]:
    """Return the job on devices that are not here, and how far off its model is."""
    assert request.gpu_type is not None, "asked for by the caller"
    request = replace(request, gpu_type=short_name(request.gpu_type))
    assert request.gpu_type is not None
    device = device_type(request.gpu_type)
    links = _links(request) or _usual_links(request, device)
    known = replace(
        start,
        device="cuda",
        links=links,
        framework=_framework(request.options),
        memory_limit_bytes=request.memory_limit_bytes or device.memory_bytes,
        buckets_mb=(25.0, 100.0),
    )
    if request.mfu is not None:
        if request.measured is not None:
            raise UsageError("--measured and --mfu both say how fast a rank is. Give one of them.")
        return replace(known, speed=assumed_speed(device, request.mfu)), UNFITTED
    known = replace(known, gathered_bytes_each=2)

    def job_of(gpu: str, values: Parameters) -> Job:
        own = links if gpu == request.gpu_type else _links(request) or _usual_links(
            replace(request, gpu_type=gpu), device_type(gpu))  # fmt: skip
        if isinstance(own, NominalLinks):
            own = replace(own, values=LinkValues.of(values))
        device = device_type(gpu)
        limit = known.memory_limit_bytes if gpu == request.gpu_type else device.memory_bytes
        speed = modelled_speed(device, values, "")
        return replace(known, speed=speed, links=own, memory_limit_bytes=limit)

    fit, told = UNFITTED, "the model of a device with its defaults; --measured fits it to rows"
    if request.measured is not None:
        model = start.model if request.workload else None
        own = LogColumns(request.columns, model, known.framework)
        rows = measured_rows(request.measured, request.gpu_type, own)
        here = job_of(request.gpu_type, defaults(chip(request.gpu_type))).speed.device
        assert here is not None, "modelled_speed gives one"
        usual = measured_products(request.measured, request.gpu_type, here)
        fit = fit_rows(rows, job_of, request.gpu_type, usual=usual)
        described = [describe_fit(fit, rows, request.measured, request.gpu_type)] if rows else []
        told = "; ".join((*described, *([usual.described] if usual.described else [])))
        ratio = activation_ratio(rows, job_of, request.gpu_type)
        known = replace(known, activation_ratio=ratio)
        if any(row.memory_gb for row in rows):
            told += f"; activations take {ratio:.3g} times what is counted"
        if model and (request.measured / "imported.json").exists():
            told += "; what logs do not say of their model is that of --workload"
    job = job_of(request.gpu_type, fit.of(request.gpu_type))
    speed = replace(job.speed, described=told)
    return replace(job, speed=speed, corrected=fit.corrected), fit


def _framework(options: str | None) -> Framework:
    """Return the options of a framework as they were given."""
    parts = [part.strip() for part in (options or "").split(",") if part.strip()]
    given = dict(part.partition("=")[::2] for part in parts)
    for name in given:
        if name not in Framework.model_fields:
            raise unknown_name("option", name, Framework.model_fields)
    try:
        return Framework.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(f"--options {name}={given[name]}: {first['msg']}.") from error


def _usual_links(request: SearchRequest, device: DeviceType) -> SearchLinks:
    if device.topology is None:
        raise UsageError(
            f"--gpu-type {request.gpu_type}: no usual links are known of it. Give --link, for "
            "example --link nvlink4+infiniband-ndr, or --links with a topology or a profile."
        )
    return NominalLinks(TOPOLOGIES[device.topology], f"topology {device.topology}; {LATER}")


def _links(request: SearchRequest) -> SearchLinks | None:
    """Return the links that were named; None: none were."""
    if request.link is not None and request.links is not None:
        raise UsageError("--link and --links both name the links. Give one of them.")
    if request.link is not None:
        return links_by_name(request.link, request.ranks_per_node)
    if request.links is None:
        return None
    if request.links not in TOPOLOGIES and _is_profile(Path(request.links)):
        profile = read_model(Path(request.links), LinkProfile)
        return CalibratedLinks(LinkModel(profile.fits), f"links of the profile {request.links}")
    return NominalLinks(load_topology(request.links), f"topology {request.links}; {LATER}")


def _is_profile(path: Path) -> bool:
    try:
        return "scalebench.link-profile" in read_text(path)[:4096]
    except (OSError, ValueError, UsageError):
        return False


def _measured(
    request: SearchRequest,
    start: Job,
    calibrate: Calibrate,
    device: Device,
    on_progress: OnProgress,
) -> tuple[Job, Scores]:
    """Return the job on ranks as they are here, and how far the step model is off there."""
    from scalebench.analysis.summarise import summarise

    for name in ("mfu", "measured", "options"):
        if getattr(request, name) is not None:
            raise UsageError(f"--{name} is for a device that is not here: add --gpu-type.")
    found: tuple[StoredRun, Summary] | None
    if request.run is not None:
        run = load_run(request.run)
        if run.link is None:
            raise UsageError(f"{request.run} cannot start a search: {run.link_unavailable}.")
        found = run, summarise(run)
    else:
        found = find_run(start.model, device, request.hosts)
    if found is None:
        on_progress(
            f"no run here has measured {start.model.name} on one rank: measuring it now", None
        )
        run = load_run(calibrate(start.model, start.batch))
        if run.link is None:
            raise EnvironmentUnfit(f"The short measurement failed: {run.link_unavailable}.")
        found = run, summarise(run)
    try:
        job = calibrated_job(*found, start.model, start)
    except NoPlainRow as reason:
        raise EnvironmentUnfit(f"{reason}. Measure it: scalebench run ddp --gpus 1,2.") from reason
    scores = scores_of(scored_rows(job, found[1].rows))  # the links that it has are those measured
    named = _links(request)
    job = replace(job, links=named) if named is not None else job
    return replace(job, memory_limit_bytes=request.memory_limit_bytes), scores


def _with_margin(
    job: Job, asked: float | None, scores: Scores, elsewhere: bool
) -> tuple[Job, str, Scores]:
    """Return the job with its margin of memory, learnt from all rows of this machine."""
    peaks = peaks_of(
        job, summaries_here(), lambda name: job.model if name == job.model.name else model_of(name)
    )
    learnt = max(0.0, max(peaks) - 1) if peaks else None
    told = scores.model_copy(update={"margin": learnt, "num_peaks": len(peaks)})
    if asked is not None:
        return replace(job, margin=asked), "as asked for with --margin", told
    if elsewhere:
        said = "four of five published peaks are within it; --margin changes it"
        return replace(job, margin=PUBLISHED_MARGIN), said, told
    if learnt is None:
        return job, "no run here has measured a peak; give --margin to leave room", told
    said = f"the most that {len(peaks)} measured peaks of this machine exceed their prediction"
    return replace(job, margin=learnt), said, told


def _not_measured(speed: ComputeSpeed) -> Iterator[str]:
    """Yield what stands in for a measurement that there is none of."""
    assumed = {
        "selective": "selective checkpointing recomputes no matrix product, and is assumed to take "
        "no time",
        "full": "full checkpointing is assumed to take one forward pass more",
    }
    yield from (said for name, said in assumed.items() if name not in speed.recomputing)
    if not speed.split_s:
        yield "a zero-bubble schedule's two backward calls are assumed to take no longer than one"


def _assumptions(job: Job) -> tuple[str, ...]:
    if isinstance(job.model, WholeModel):
        return (
            job.speed.described,
            job.links.described,
            f"of {job.model.name} only its measured step is known: its samples and its state are "
            "divided, not its layers",
            "no waiting and no stalls",
            "parameters, gradients and what is sent of them have 32 bits",
        )
    modelled = job.speed.device is not None
    bits = "parameters, gradients and what is sent of them have 32 bits"
    if modelled:
        bits = "parameters are gathered in 16 bits"
        if isinstance(job.links, NominalLinks):
            bits += (
                "; a ring of ranks uses all links of a node, or ranks first combine inside nodes"
            )
    told: Sequence[str] = (
        job.speed.described,
        job.links.described,
        "no waiting and no stalls",
        *(() if modelled else _not_measured(job.speed)),
        bits,
        "tensor groups divide the sequence, too",
        *([f"framework: {_options_text(job.framework)}"] if modelled else []),
    )
    return tuple(told)


def _options_text(options: Framework) -> str:
    told = ", ".join(f"{name}={value}" for name, value in options)
    return f"{told}; --options changes them"


class Trainable:
    """Asks `strategy_of` once for each kind of configuration.

    A kind is which axes have several ranks, and everything that is no size: in the space, whose
    sizes divide the job, no answer depends on a size (a test asks for every configuration).
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[int, bool] = {}

    def __call__(self, of: Candidates) -> npt.NDArray[np.bool_]:
        """Return which of them a strategy trains."""
        kinds, first, place = np.unique(_kinds(of), return_index=True, return_inverse=True)
        answers = [
            self._answer(of, int(kind), int(i)) for kind, i in zip(kinds, first, strict=True)
        ]
        return np.array(answers, dtype=bool)[place]

    def _answer(self, of: Candidates, kind: int, i: int) -> bool:
        if kind not in self._known:
            job = self._job
            found = strategy_of(
                choice_at(of, i), job.device, job.world_size, job.batch, job.model.experts
            )
            self._known[kind] = not isinstance(found, str)
        return self._known[kind]


def _kinds(of: Candidates) -> Ints:
    """Return the kind of each as one number."""
    several = [(getattr(of, axis) > 1, 2) for axis in AXES]
    others = [
        (of.zero, 4),
        (of.schedule, len(SCHEDULES)),
        (of.chunks > 1, 2),
        (of.microbatches > 1, 2),
        (of.checkpointing, len(CHECKPOINTING)),
        (of.precision, len(PRECISIONS)),
        (of.ring, 2),
    ]
    key = np.zeros(len(of), dtype=np.int64)
    for column, values in (*several, *others):
        key = key * values + column
    return key
