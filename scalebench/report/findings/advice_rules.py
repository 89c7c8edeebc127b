"""What to do about a case, as rules: each says one thing, and only with a number behind it.

The rules of `FIRST` are asked in order: as long as one of them has something to say, no cause of
the loss is worth acting on. Then those of the largest part that is certain or likely, then of the
next; `LAST` are for a case in which the largest may be nothing. What is only likely is said to be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from scalebench import units
from scalebench.analysis.rows.script_checks import SYNCHRONISING
from scalebench.costmodel.pipeline_schedule import bubble_law
from scalebench.records.rows.budget import PARTS, Budget, Part
from scalebench.records.rows.steps import ChangedStep
from scalebench.records.summary import Estimate, Row
from scalebench.report.words import wording
from scalebench.report.words.causes import (
    action,
    certain,
    largest_inflation,
    lateness,
    likely,
    losses,
    points,
    reasons,
    straggler,
    why_open,
)
from scalebench.report.words.notes import marks

DDP = "DistributedDataParallel"

LEAST_LOSS = 0.01
"""Of the step: a smaller part is not worth a change."""

LEAST_GAIN = 0.02
"""Of the step: a smaller predicted gain is not worth a change."""


@dataclass(frozen=True)
class AdviceInput:
    """What a rule may look at.

    Attributes:
        row: The case's headline.
    """

    row: Row
    of_suite: Sequence[Row] = ()

    @cached_property
    def budget(self) -> Budget | None:
        """The loss budget; None: there is none, or it does not close."""
        found = self.row.budget
        return found if found is not None and found.closes else None

    def points_of(self, key: str) -> str:
        """Write what a part of the budget takes, in percent of the step."""
        part = next(part for part in PARTS if part.key == key)
        assert self.budget is not None
        return points(self.budget.share(part))

    @property
    def losses(self) -> list[Part]:
        """The parts that take time and certainly or probably do, the largest first.

        They end before the first that may as well be nothing: none is worth a change as long as a
        larger one is not known.
        """
        found = losses(self.row, LEAST_LOSS)
        return list(takewhile(lambda part: self.is_certain(part) or self.is_likely(part), found))

    def is_certain(self, part: Part) -> bool:
        """Whether a part can be told from zero."""
        return self.budget is not None and certain(self.row, self.budget, part)

    def is_likely(self, part: Part) -> bool:
        """Whether a part is probably no noise, although its interval includes zero."""
        return self.budget is not None and likely(self.budget, part)

    @property
    def model_error(self) -> float | None:
        """How far the cost model is off here or in the run's other rows, whichever is more."""
        error, told = self.row.prediction_error, self.row.prediction
        return None if error is None else max(abs(error), (told and told.typical_error) or 0.0)

    def best(self, change: str) -> ChangedStep | None:
        """Return the what-if of one kind that gains most; None: none gains more than the error."""
        error = self.model_error
        told = self.row.prediction.what_if if self.row.prediction else ()
        found = [step for step in told if step.changes(change) and step.efficiency is not None]
        if error is None or not found:
            return None
        most = max(found, key=lambda step: step.gain)
        return most if most.gain > max(error, LEAST_GAIN) else None


@dataclass(frozen=True)
class Advice:
    """What to do, and the number that says so.

    Attributes:
        because: Why; empty: the action says it.
        in_brief: The next step in at most 75 characters; empty: the action says it.
        larger_batch: Whether a larger batch is what helps.
    """

    action: str
    because: str = ""
    in_brief: str = ""
    larger_batch: bool = False

    @property
    def whole(self) -> str:
        """The sentence of page, Markdown and ``show --verbose``."""
        return f"{self.action}: {self.because}." if self.because else f"{self.action}."

    @property
    def next_step(self) -> str:
        """The line of the terminal."""
        return self.in_brief or self.action


@dataclass(frozen=True)
class Loss:
    """Something that takes time, and what to do about it.

    Attributes:
        taken_s: Of a step, at most.
        sentence: What is certain of it at any noise; None: the loss budget tells it.
        about: Key of the part of the loss budget that it explains; None: of none.
    """

    cause: str
    taken_s: Estimate
    advice: Advice
    sentence: str | None = None
    about: str | None = None

    def share(self, step_s: float) -> str:
        """Write cause and share: ``"small buckets, up to 32.2 % of the step"``."""
        return f"{self.cause}, up to {units.percent(self.taken_s.value / step_s)} of the step"


Says = Callable[[AdviceInput], Advice | None]


@dataclass(frozen=True)
class Rule:
    """One piece of advice.

    Attributes:
        name: What it is called in tests.
        about: The part of the loss budget that it is about; None: no single one.
        says: The advice; None: the rule does not apply.
    """

    name: str
    about: str | None
    says: Says


GRADIENT_HOOKS = ("ddp", "compressed")
"""Strategies that send gradients from hooks of the backward pass, and may accumulate them."""

NOTHING_TO_GAIN = 0.97
"""An efficiency whose interval lies above this."""


def _wrong_result(case: AdviceInput) -> Advice | None:
    found = case.row.correctness
    if found is None or found.status != "deviates" or found.tolerance is None:
        return None
    known = [d for d in (found.gradient_deviation, found.loss_deviation) if d is not None]
    if not known:
        return None
    deviates, allowed = f"{max(known):.1e}", f"{found.tolerance:.0e}"
    return Advice(
        "Find out first why the result is wrong",
        f"it deviates by {deviates} where {allowed} is allowed",
        f"Find out first why the result is wrong: {deviates}, allowed {allowed}",
    )


def _oversubscribed(case: AdviceInput) -> Advice | None:
    if not case.row.oversubscribed:
        return None
    few = wording.scarce(case.row)
    return Advice(f"Measure on {case.row.world_size} {few} before reading this as scaling")


def _too_short(case: AdviceInput) -> Advice | None:
    of_case = [row for row in case.of_suite if row.case == case.row.case]
    ended = {row.world_size for row in [case.row, *of_case] if "ended early" in marks(row)}
    if case.row.budget is not None or not ended:
        return None
    sizes = " and ".join(f"N={size}" for size in sorted(ended))
    return Advice(
        "Have the script train longer; scalebench ends it when everything is measured",
        f"at {sizes} it ended before steps were traced",
        "Have the script train longer: it ended before steps were traced",
    )


def _one_launch(case: AdviceInput) -> Advice | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.n > 1:
        return None
    if case.row.strategy == "imported":
        return Advice("Import the logs of further jobs of each N", "each N is of one job")
    late = straggler(case.row)
    action = "Run it again with --repeats 3 before acting on it"
    if late is None:
        return Advice(action, "1 launch gives no interval")
    why = next(iter(reasons(case.row, late.rank).values()), lateness(late))
    seen = f"rank {late.rank} is late: {why}"
    return Advice(action, f"1 launch gives no interval; in it, {seen}", f"--repeats 3; {seen}")


NOT_ALONE = "Stop the other programs (see scalebench doctor) and run it again"


def _not_alone(case: AdviceInput) -> Advice | None:
    if "foreign load" not in marks(case.row):
        return None
    return Advice(NOT_ALONE, "they take processors from the ranks")


def _too_wide(case: AdviceInput) -> Advice | None:
    efficiency = case.row.efficiency
    if efficiency is None or not wording.too_wide(efficiency):
        return None
    span = wording.interval(efficiency, 100)
    return Advice(
        f"Quiet the machine and run it again with --repeats {2 * efficiency.n}",
        f"{span} % is too wide to act on",
    )


def _budget_open(case: AdviceInput) -> Advice | None:
    found = case.row.budget
    if found is None or found.closes:
        return None
    why = why_open(
        found,
        lambda left: f"the parts leave {_percent(abs(left))} of the step unexplained",
        lambda drift: (
            f"clean steps next to the traced ones differ by {_percent(abs(drift))} from the"
            " headline's"
        ),
    )
    return Advice("Quiet the machine and run it again before acting on it", why)


def _nothing_to_gain(case: AdviceInput) -> Advice | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.low is None or efficiency.low < NOTHING_TO_GAIN:
        return None
    most = f"at most {points(1 - efficiency.low)} % can be gained"
    return Advice("Leave it", most, f"Leave it: {most}")


def _faster_neighbour(case: AdviceInput) -> Advice | None:
    own = case.row
    rivals = [
        other
        for other in case.of_suite
        if other is not own
        and (other.strategy, other.workload) == (own.strategy, own.workload)
        and (other.world_size, other.global_batch) == (own.world_size, own.global_batch)
        and other.oversubscribed == own.oversubscribed
        and other.compression is None
        and other.status == "ok"
        and not other.deviates
        and wording.surely_above(other.efficiency, own.efficiency)
    ]
    if not rivals:
        return None
    best = max(rivals, key=lambda row: row.efficiency.value if row.efficiency else 0.0)
    assert best.efficiency is not None
    if best.speedup is not None and (best.speedup.high or best.speedup.value) < 1:
        name = wording.plain(best.case, 64)
        reached = f"{wording.point(best.speedup)}{wording.TIMES}"
        return Advice(f"Train on one rank: {name}, which is faster here, is slower too ({reached})")
    settings = f"Use the settings of {wording.plain(best.case, 64)}"
    measured = f"{wording.plus_minus(best.efficiency, 100)} % on the same ranks"
    return Advice(f"{settings}, which was measured at {measured}", "", f"{settings}: {measured}")


def _model_says(case: AdviceInput, action: str, condition: str, what_if: ChangedStep) -> Advice:
    """Advise ``action``, for which the cost model predicts a gain under a condition."""
    now = case.row.prediction.efficiency if case.row.prediction else None
    better = _percent(what_if.efficiency or 0.0)
    before = "" if now is None else f" instead of {_percent(now)}"
    off = _percent(case.model_error or 0.0)
    return Advice(
        action,
        f"{condition}the cost model predicts {better}{before} (the model is off by up to {off}"
        " here)",
        f"{action}: {better}{before} is predicted",
    )


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %" if ratio >= 0.1 else f"{100 * ratio:.2g} %"


def _what_if(name: str, change: str, action: str, condition: str = "") -> Rule:
    """Return the rule that advises a change where the cost model predicts a gain by it."""

    def says(case: AdviceInput) -> Advice | None:
        best = case.best(change)
        if best is None:
            return None
        value = getattr(best, change)
        return _model_says(case, action.format(value), condition.format(value), best)

    return Rule(name, "exposed_transfer", says)


def _of_part(name: str, about: str, action: str, because: str, in_brief: str = "") -> Rule:
    """Return the rule that always advises the same about a part, with what that takes."""

    def says(case: AdviceInput) -> Advice:
        return Advice(action, because.format(case.points_of(about)), in_brief)

    return Rule(name, about, says)


def _send_less_often(case: AdviceInput) -> Advice:
    batch, taken = case.row.rank_batch, case.points_of("exposed_transfer")
    if not _sends_gradients(case.row):
        return Advice(
            "Use fewer ranks for this dimension, or a faster link between them",
            f"transfer takes {taken} % of the step, and grows with the batch",
        )
    can = _has_hooks(case.row)
    slower = can and _accumulation_was_slower(case)
    more = f"more samples per rank and step than {batch}"
    why = f"divide the {taken} % of the step that transfer takes"
    if slower or not can:
        told = "; accumulation was measured here, and is slower" if slower else ""
        return Advice(
            "Send less often",
            f"{more} {why}{told}",
            f"Send less often: more than {batch} samples per rank",
            larger_batch=True,
        )
    return Advice(
        "Send less often",
        f"{more}, or gradient accumulation, {why}",
        f"Send less often: more than {batch} samples per rank, or accumulation",
        larger_batch=True,
    )


def _sends_gradients(row: Row) -> bool:
    """Tell whether a step sends as much whatever its batch: gradients, not activations."""
    cuts = {"tensor", "context", "expert", "pipeline", "layerwise", "mesh"}
    layouts = {"DTensor", "_PipelineStageBase", "_PipelineSchedule"}
    kinds = {one.kind for one in row.wrappers or ()}
    return row.strategy not in cuts and not (kinds & layouts and not kinds & set(SYNCHRONISING))


def _has_hooks(row: Row) -> bool:
    return row.strategy in GRADIENT_HOOKS or any(one.kind == DDP for one in row.wrappers or ())


def _accumulation_was_slower(case: AdviceInput) -> bool:
    own, name = case.row, "accumulate"
    return any(
        (other.strategy, other.workload) == (own.strategy, own.workload)
        and (other.world_size, other.global_batch) == (own.world_size, own.global_batch)
        and other.strategy_settings.get(name, 1) > own.strategy_settings.get(name, 1)
        and wording.surely_above(own.efficiency, other.efficiency)
        for other in case.of_suite
    )


def _late_rank(case: AdviceInput) -> Advice | None:
    late = straggler(case.row)
    if late is None:
        return None
    last = f"it is {lateness(late)}"
    for part, why in reasons(case.row, late.rank).items():
        look = action(late.rank, part)
        return Advice(look, f"{why}; {last}", f"{look}: {why}")
    look = action(late.rank, "")
    return Advice(look, last, f"{look}: {last.partition(',')[0]}")


def _contention(case: AdviceInput) -> Advice | None:
    largest = largest_inflation(case.budget)
    if largest is None or largest.field != "contention_s":
        return None
    shared = "memory bandwidth, cores" if case.row.device == "cpu" else "power, clocks, the host"
    return Advice(
        f"Look for what the ranks share ({shared})",
        f"{largest.text} % of the step: plain ranks that train at once and send nothing are slower",
    )


def _own_operators(case: AdviceInput) -> Advice | None:
    largest = largest_inflation(case.budget)
    if largest is None or largest.field != "own_operators_s":
        return None
    found = _additions(case.row)
    adds, takes = wording.joined(found), "takes" if len(found) == 1 else "take"
    return Advice(
        f"Compare other strategies: this one adds to the computation ({adds})",
        f"{largest.text} % of the step: plain ranks with this batch, training at once, do without",
        f"Compare other strategies: {adds} {takes} {100 * largest.share.value:.1f} %",
    )


def _additions(row: Row) -> list[str]:
    cut = row.pipeline is not None or (row.strategy_settings.get("accumulate") or 1) != 1
    found = (("microbatches", cut), ("hooks", _has_hooks(row)), ("its wrapper", True))
    return [name for name, has in found if has]


def _bucket_views(case: AdviceInput) -> Advice | None:
    row = case.row
    copies = [one for one in row.wrappers or () if one.gradient_as_bucket_view is False]
    if not copies or row.num_parameters is None:
        return None
    action = "Try gradient_as_bucket_view=True"
    size = units.count(row.num_parameters)
    copied = f"DDP copies the gradients of {size} parameters"
    return Advice(
        action,
        f"{copied} into its buckets and back in every step, and the computation takes"
        f" {case.points_of('compute_inflation')} % of the step longer than on one rank",
        f"{action}: gradients of {size} parameters are copied",
    )


def _small_share(case: AdviceInput) -> Advice | None:
    row = case.row
    taken = case.points_of("compute_inflation")
    if row.scaling == "strong" and row.rank_batch < row.global_batch:
        more = f"Give each rank more than {row.rank_batch} samples"
        return Advice(
            f"{more} (a larger --batch-size, or --scaling weak)",
            f"its share takes {taken} % of the step longer than on one rank",
            f"{more} (--batch-size, or --scaling weak)",
            larger_batch=True,
        )
    return Advice(
        "Look for what the ranks share (memory bandwidth, cores, clocks)",
        f"the same work takes {taken} % of the step longer than on one rank",
    )


def _more_microbatches(case: AdviceInput) -> Advice | None:
    pipeline = case.row.pipeline
    if pipeline is None or not pipeline.bubble_law:
        return None
    law, m = pipeline.bubble_law, pipeline.num_microbatches
    twice = bubble_law(pipeline.schedule, pipeline.num_ranks, 2 * m, pipeline.chunks)
    if twice is None:
        return None
    shrinks = f"the bubble shrinks from {units.percent(law)} to {units.percent(twice)}"
    return Advice(
        f"Cut the batch into {2 * m} microbatches instead of {m}",
        f"by the schedule's law {shrinks}",
    )


def _more_workers(case: AdviceInput) -> Advice:
    loader = case.row.script.loader if case.row.script is not None else None
    known = loader is not None and loader.num_workers is not None
    has = f", it has {loader.num_workers}" if loader and known else ""
    return Advice(
        f"Give the loader more workers (num_workers{has})",
        f"waiting for data takes {case.points_of('data_stall')} % of the step",
    )


def _longer_steps(case: AdviceInput) -> Advice:
    whose = (
        "CPU cannot feed the device fast enough"
        if case.row.device != "cpu"
        else ("ranks spend too much time between operations")
    )
    compiled = "torch.compile" if case.row.script is not None else "--compile"
    return Advice(
        f"The {whose}. Try a larger batch or {compiled}",
        f"idle takes {case.points_of('other_idle')} % of the step",
        f"Try a larger batch or {compiled}: idle takes {case.points_of('other_idle')} %",
        larger_batch=True,
    )


def _more_launches(case: AdviceInput) -> Advice | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.low is None or case.budget is None:
        return None
    return Advice(
        f"Run it again with --repeats {2 * efficiency.n} before acting on it",
        f"{efficiency.n} launches are too few to say what takes the time",
    )


INVALID = (Rule("wrong result", None, _wrong_result), Rule("oversubscribed", None, _oversubscribed))
"""No number of the case is worth acting on."""

TOO_WIDE = Rule("interval too wide", None, _too_wide)
DOUBTS = (
    Rule("too short", None, _too_short),
    Rule("not alone", None, _not_alone),
    Rule("one launch", None, _one_launch),
    TOO_WIDE,
    Rule("budget open", None, _budget_open),
)
"""Its efficiency or its loss budget is not."""

FIRST = (
    *INVALID,
    *DOUBTS[:4],
    Rule("nothing to gain", None, _nothing_to_gain),
    *DOUBTS[4:],
    Rule("faster neighbour", None, _faster_neighbour),
)

RULES = (
    _what_if("other buckets", "bucket_mb", "Try buckets of {:g} MiB"),
    _what_if(
        *("fewer bits", "gradient_bits", "Try gradients of {} bits", "conversion not counted, ")
    ),
    _what_if(
        *("faster link", "times_bandwidth", "Use a faster link, or send less"),
        "with {:g} times the bandwidth ",
    ),
    Rule("send less often", "exposed_transfer", _send_less_often),
    Rule("late rank", "wait", _late_rank),
    _of_part(
        *("uneven ranks", "wait"),
        "Close other programs; check that all ranks get the same amount of data",
        "waiting takes {} % of the step, but never for the same rank",
        "Close other programs; give all ranks the same amount of data",
    ),
    Rule("contention", "compute_inflation", _contention),
    Rule("bucket views", "compute_inflation", _bucket_views),
    Rule("own operators", "compute_inflation", _own_operators),
    Rule("small share", "compute_inflation", _small_share),
    Rule("more microbatches", "bubble", _more_microbatches),
    _of_part(
        *("other schedule", "bubble", "Compare other schedules with `scalebench show --schedule`"),
        "the bubble takes {} % of the step",
    ),
    _of_part(
        *("cheaper codec", "codec", "Compress with a cheaper method"),
        "encoding takes {} % of the step",
    ),
    _of_part(
        *("copy during computation", "copies"),
        "Copy while the GPU computes (pin_memory=True, non_blocking=True, the next batch ahead of"
        " time)",
        "copies during which nothing else runs take {} % of the step",
        "Copy while the GPU computes (pin_memory=True, non_blocking=True)",
    ),
    Rule("more workers", "data_stall", _more_workers),
    Rule("longer steps", "other_idle", _longer_steps),
)
"""About one part of the loss budget each; of the rules for a part the first that applies."""

LAST = (Rule("more launches", None, _more_launches),)
