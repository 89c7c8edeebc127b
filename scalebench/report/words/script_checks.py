"""Whether a user's script trains rightly, and what else was seen of it, in sentences.

What is wrong begins with ``CHECK`` and says what to do. A note is no error: it says what is so.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from scalebench import units
from scalebench.records.rows.script import (
    LearningRate,
    LoaderSettings,
    LongestGap,
    OutsideSteps,
    ProcessGroups,
    ScriptChecks,
)
from scalebench.records.rows.steps import StepKinds
from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.notes import marks

LEAST_TO_NORMALISE = 16
"""Samples: with fewer BatchNorm's error grows. Source: Wu & He, Group Normalization, 2018."""

MOST_SHARED = 0.05
"""Of the samples: a data set may hold some twice."""

Kind = Literal["wrong", "right", "note", "unknown"]
LEAST_SHARE = 0.01
"""Of the step: a search that takes less is not worth a line in the remarks_in_brief table."""


class Said(NamedTuple):
    """What one check says.

    Attributes:
        about: What was looked at.
        short: In a few words, where it is right or a note.
        sentence: Without a full stop.
    """

    about: str
    kind: Kind
    short: str
    sentence: str


def brief(row: Row) -> list[str]:
    """Return what is wrong, and one line of what is right and what is noted."""
    said = said_of(row)
    short = [one.short for one in said if one.kind == "right"]
    short += [f"note: {one.short}" for one in said if one.kind == "note"]
    return _wrong(said) + ([f"checks: {' · '.join(short)}"] if short else [])


def in_full(row: Row) -> list[str]:
    """Return the same with the notes in full."""
    said = said_of(row)
    short = [one.short for one in said if one.kind == "right"]
    told = _wrong(said) + ([f"checks: {' · '.join(short)}"] if short else [])
    return told + [f"note: {one.sentence}" for one in said if one.kind == "note"]


def _wrong(said: Sequence[Said]) -> list[str]:
    return [f"CHECK: {one.sentence}" for one in said if one.kind == "wrong"]


def said_of(row: Row) -> list[Said]:
    """Return what all checks say of a row; empty: none was made."""
    found = row.script.checks if row.script else None
    if found is None:
        return []
    return [
        *_models(found),
        *_buffers(found),
        *_data(row, found),
        *_accumulation(found),
        *_gradient(row, found),
        *_loss(found),
        *_layers(row, found),
        *_rate(found.learning_rate),
        *_repeated(row),
    ]


def of_largest(rows: Sequence[Row]) -> list[Said]:
    """Return what the checks say of the row with most ranks that has some."""
    checked = [row for row in rows if row.script is not None and row.script.checks is not None]
    largest = max(checked, key=lambda row: row.world_size, default=None)
    return said_of(largest) if largest is not None else []


def _models(found: ScriptChecks) -> Iterator[Said]:
    if found.in_sync:
        steps = ", ".join(map(str, found.observed_steps))
        yield Said(
            "models", "right", "in sync", f"equal on all ranks that share them, at step {steps}"
        )
    elif found.in_sync is None:
        yield Said("models", "unknown", "", found.in_sync_unavailable or "not recorded")
    else:
        names = _named(found.differing, found.num_differing)
        sentence = f"the ranks' models differ{_since(found)}, in {names}; {_remedy(found)}"
        yield Said("models", "wrong", "", sentence)


def _buffers(found: ScriptChecks) -> Iterator[Said]:
    names = _named(found.differing_buffers, len(found.differing_buffers))
    if names and found.buffers_broadcast:
        sentence = (
            f"each rank updates buffers alone, {names}, and DDP puts those of rank 0 in their place"
            " before each forward pass: what the other ranks saw is lost"
        )
        yield Said("buffers", "note", "buffers are those of rank 0", sentence)
    elif names:
        sentence = (
            f"the ranks' buffers differ, in {names}: each rank updates its own, and DDP has"
            " broadcast_buffers=False; average them over the ranks"
        )
        yield Said("buffers", "wrong", "", sentence)


def _data(row: Row, found: ScriptChecks) -> Iterator[Said]:
    if found.same_batches:
        loads = row.script is not None and row.script.loader is not None
        to = "the DataLoader a DistributedSampler" if loads else "each rank another seed"
        sentence = (
            f"all ranks train on the same batches: {row.world_size} ranks do the work of one; give"
            f" {to}"
        )
        yield Said("data", "wrong", "", sentence)
    elif (found.shared_samples or 0) > MOST_SHARED:
        sentence = (
            f"ranks train partly on the same samples: {found.shared_samples:.0%} of those that were"
            f" looked at are on more than one rank; give each DataLoader a DistributedSampler of"
            f" {row.world_size} replicas, with its own rank"
        )
        yield Said("data", "wrong", "", sentence)
    elif found.same_batches is False:
        yield Said("data", "right", "different data", "ranks train on different batches")
    else:
        why = "no DataLoader feeds the training, or not all ranks divide the data"
        yield Said("data", "unknown", "", why)
    if found.same_order:
        sentence = "every epoch has the same order; call sampler.set_epoch(epoch) in each"
        yield Said("order", "wrong", "", sentence)


def _accumulation(found: ScriptChecks) -> Iterator[Said]:
    count = found.accumulated
    if found.accumulation == "summed":
        sentence = (
            f"the gradients of {count} micro-batches are summed, which is {count} times their mean;"
            f" divide each loss by {count} for it"
        )
        yield Said("accumulation", "note", "micro-batches are summed", sentence)
    if found.exchanged == "each pass":
        sentence = f"each of the {count} micro-batches exchanges its gradients"
        yield Said("exchange", "note", "gradients are sent for each micro-batch", sentence)
    elif found.accumulation == "averaged":
        once = ", exchanged once" if found.exchanged else ""
        sentence = f"gradients are averaged over {count} micro-batches{once}"
        yield Said("accumulation", "right", "accumulates right", sentence)


def _loss(found: ScriptChecks) -> Iterator[Said]:
    if found.loss_lost_from is not None:
        sentence = (
            f"the loss is NaN or infinite from step {found.loss_lost_from} on: the steps are timed,"
            " but nothing is learned; look at the weights' start and the learning rate"
        )
        yield Said("loss", "wrong", "", sentence)


def _gradient(row: Row, found: ScriptChecks) -> Iterator[Said]:
    size = row.world_size
    if found.divided == "once":
        sentence = "its norm is that of N=1 on the same samples"
        yield Said("gradient", "right", "gradient as at N=1", sentence)
    elif found.divided == "twice":
        sentence = (
            f"the gradient is divided by {size} twice, as DDP averages over the ranks: it is 1/"
            f"{size} of that of one rank on the same samples; have the loss be the mean of a"
            " rank's own samples"
        )
        yield Said("gradient", "wrong", "", sentence)
    elif found.divided == "never":
        sentence = (
            f"the gradient is {size} times that of N=1 on the same samples: it is summed over the"
            " ranks; divide it by their number"
        )
        yield Said("gradient", "wrong", "", sentence)
    elif found.divided_unavailable:
        yield Said("gradient", "unknown", "", found.divided_unavailable)


def _layers(row: Row, found: ScriptChecks) -> Iterator[Said]:
    samples = _normalised(row)
    if found.batch_norms and samples and samples < LEAST_TO_NORMALISE:
        sentence = (
            f"BatchNorm sees {samples} samples, those of one rank; SyncBatchNorm takes those of all"
        )
        yield Said("BatchNorm", "wrong", "", sentence)
    if found.same_dropout:
        sentence = (
            "dropout draws the same random numbers on all ranks; for different ones add the rank"
            " to the seed, once the model is made"
        )
        yield Said("dropout", "note", "dropout is the same on all ranks", sentence)


def _repeated(row: Row) -> Iterator[Said]:
    found = row.reproducible
    if found is None:
        yield Said("reproducible", "unknown", "", row.unavailable.get("reproducible", ""))
    elif found.equal:
        yield Said("reproducible", "right", "reproducible", found.sentence)
    else:
        yield Said("reproducible", "note", "not reproducible", found.sentence)


def _named(names: list[str], count: int) -> str:
    shown = [wording.plain(name, 60) for name in names]
    more = count - len(shown)
    return wording.joined([*shown, f"{more} more"] if more else shown)


def _since(found: ScriptChecks) -> str:
    """Say since when the models differ, as far as the steps tell that were looked at."""
    if found.drift_from is None:
        return ""
    if found.in_sync_until is None:
        return " from the start" if found.drift_from == 0 else ""
    first, then = found.in_sync_until, found.drift_from
    if then == first + 1:
        return f" since step {then}"
    return f" since a step from {first + 1} to {then}"


def _remedy(found: ScriptChecks) -> str:
    if any("outside of DDP" in name for name in found.differing):
        return "DDP must wrap all of it"
    if found.drift_from == 0 and found.in_sync_until is None:
        return "give all ranks the same start, for example with one seed"
    return "a rank changes them alone: look for what follows the backward pass"


def _rate(found: LearningRate | None) -> Iterator[Said]:
    """Say that the learning rate is that of N=1 though a step has more samples.

    Not where it grows during the steps that were seen: that is a warm-up.
    """
    if found is None or found.at_one is None or found.linear is None or found.square_root is None:
        return
    if found.first == found.last == 0:
        sentence = f"the learning rate is 0 in all {found.last_step} steps that were seen"
        yield Said("learning rate", "note", "the learning rate stays 0", sentence)
        return
    if abs(found.first - found.at_one) > 1e-6 * found.at_one or found.last > found.first:
        return
    batches = f"{found.batch_at_one or 0:.6g} to {found.batch or 0:.6g}"
    sentence = (
        f"the learning rate is {found.first:.3g} as at N=1, a step has grown from {batches}"
        f" samples, and {found.last_step} steps show no warm-up. That may be right; by the linear"
        f" rule it would be {found.linear:.3g} (Goyal et al. 2017, with warm-up), by the"
        f" square-root rule {found.square_root:.3g} (Krizhevsky 2014; for Adam Malladi et al. 2022)"
    )
    yield Said("learning rate", "note", "the learning rate is that of N=1", sentence)


def _normalised(row: Row) -> int | None:
    """Return the samples of a forward pass on one rank; None: they were not counted.

    Several passes of a step may be on one batch, as a GAN's, unless they are micro-batches.
    """
    facts = row.script
    passes = facts.backwards_per_step if facts else None
    has_own = passes == 1 or (facts and facts.checks and facts.checks.accumulated)
    counted = has_own and "samples not counted" not in marks(row)
    return round(row.rank_batch / passes) if passes and counted else None


def needless_search(row: Row) -> tuple[float | None, float | None] | None:
    """Return seconds and share of the clean step of DDP's search for unused parameters.

    None: it found some, or is off; each of the two: not timed.
    """
    searching = [
        one
        for one in row.wrappers or ()
        if one.find_unused_parameters and not one.static_graph and one.unused_bytes is not None
    ]
    if not searching or any(one.unused_bytes for one in searching):
        return None
    seconds = row.script.unused_search_s if row.script else None
    if seconds is None or row.step_s is None:
        return seconds, None
    return seconds, seconds / row.step_s.value


def remarks_in_brief(rows: Sequence[Row]) -> list[str]:
    """Return what is worth a change of the script: of the row with most ranks alone."""
    row = _largest(rows)
    if row is None:
        return []
    _, share = needless_search(row) or (None, None)
    told = [
        *brief(row),
        _calls(row),
        _search(row) if share is not None and share >= LEAST_SHARE else "",
        _never_seen(row, rows),
        host_waits(row) if row.device == "cuda" else "",
    ]
    return [f"{wording.place(row)}: {said}" for said in told if said]


def remarks_in_full(rows: Sequence[Row]) -> list[str]:
    """Return all remarks on the row with most ranks."""
    row = _largest(rows)
    return [f"{wording.place(row)}: {said}" for said in remarks(row, rows)] if row else []


def _largest(rows: Sequence[Row]) -> Row | None:
    measured = [row for row in rows if row.status == "ok" and row.script is not None]
    return max(measured, key=lambda row: row.world_size, default=None)


def remarks(row: Row, of_case: Sequence[Row] = ()) -> list[str]:
    """Return all that was seen, as sentences without a full stop; ``of_case``: at other sizes."""
    if row.script is None:
        return []
    told = [
        *in_full(row),
        _calls(row),
        _search(row),
        host_waits(row),
        _loader(row.script.loader),
        _groups(row.script.groups),
        _never_seen(row, of_case),
    ]
    return [said for said in told if said]


def _calls(row: Row) -> str:
    calls = row.script.calls_per_step if row.script else None
    return f"a step is {calls} optimizer calls" if calls and calls > 1 else ""


def _search(row: Row) -> str:
    found = needless_search(row)
    if found is None:
        return ""
    said = "DDP searches for unused parameters (find_unused_parameters=True) and finds none"
    seconds, share = found
    if seconds is None:
        return said
    part = "" if share is None else f", {units.percent(share)} of it"
    return f"{said}, which takes {units.seconds(seconds)} of a step{part}"


def host_waits(row: Row) -> str:
    """Say how often a step waits for the device and where; empty: never, or not known."""
    found = row.script.host_waits if row.script else None
    if found is None or not found.places:
        return ""
    first = found.places[0]
    place = f"{wording.plain(first.file, 80)}:{first.line}"
    calls = f"{found.per_step:.3g} call{'' if found.per_step == 1 else 's'} a step"
    waits = "have" if found.per_step != 1 else "has"
    what = "wait for the GPU" if row.device == "cuda" else "read a tensor, for which a GPU waits"
    return f"{calls} {waits} the host {what}; the first is {first.call} in {place}"


def _never_seen(row: Row, of_case: Sequence[Row]) -> str:
    found, steps = row.outside_step, max((len(s.step_s) for s in row.samples), default=0)
    if found is None or not steps:
        return ""
    all_found = [found, *(one.outside_step for one in of_case if one.outside_step is not None)]
    parts = {
        "evaluation": [one.evaluation_s for one in all_found],
        "checkpoint": [one.checkpoint_s for one in all_found],
    }
    missing = [name for name, seconds in parts.items() if not any(seconds) and 0 in seconds]
    if not missing:
        return ""
    return (
        f"no {wording.joined(missing, 'and no')} was seen in the {steps} measured steps; if the"
        " script does that less often, no number here has its time"
    )


def _loader(found: LoaderSettings | None) -> str:
    if found is None or found.num_workers is None:
        return ""
    if not found.num_workers:
        return "the DataLoader has no workers: batches are made in the training process"
    plural = "" if found.num_workers == 1 else "s"
    return f"the DataLoader has {found.num_workers} worker{plural}"


def _groups(found: Sequence[ProcessGroups]) -> str:
    others = [one for one in found if one.name != "world"]
    if not others:
        return ""
    return f"process groups besides that of all ranks: {wording.joined(list(map(_group, others)))}"


def _group(found: ProcessGroups) -> str:
    name = f"{wording.plain(found.name, 40)} of " if found.name else "of "
    several = f"{found.count} × " if found.count > 1 else ""
    return f"{several}{name}{found.ranks} rank{'' if found.ranks == 1 else 's'}"


LEAST_GAP_SHARE = 0.01
"""Of the clean window: less is not worth a line."""


def gaps_sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row with gaps between its steps how long they were, and where the longest."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := gaps_sentence(row))]


def gaps_sentence(row: Row) -> str:
    """Say what a row's script did between its steps; empty: nothing of note."""
    found = row.outside_step
    if found is None or found.share < LEAST_GAP_SHARE:
        return ""
    places = [
        f"{units.seconds(gap.seconds)} before step {gap.step} (rank {gap.rank}{_kind(gap)})"
        for gap in found.largest
    ]
    plural = "" if found.num_gaps == 1 else "s"
    return (
        f"outside of the steps {units.seconds(found.seconds)}, {units.percent(found.share)} of "
        f"the clean window, in {found.num_gaps} gap{plural}{_parts(found)}; no part of the steps "
        "above. "
        f"The longest: {wording.joined(places)}"
    )


def _kind(gap: LongestGap) -> str:
    return f", {gap.kind}" if gap.kind in ("evaluation", "checkpoint") else ""


def _parts(found: OutsideSteps) -> str:
    """Say what the gaps were, largest first; empty: not recorded, or nothing was recognised."""
    parts = {
        "evaluation": found.evaluation_s or 0.0,
        "checkpoints": found.checkpoint_s or 0.0,
        "other": found.other_s or 0.0,
    }
    if not parts["evaluation"] and not parts["checkpoints"]:
        return ""
    largest_first = sorted(parts.items(), key=lambda one: -one[1])
    return f" ({', '.join(f'{name} {units.seconds(s)}' for name, s in largest_first if s)})"


def kinds_sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row whose steps differ how; rows without such steps say nothing."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := kinds_sentence(row))]


def kinds_sentence(row: Row) -> str:
    """Say how a row's steps differ; empty: they do not."""
    if row.step_kinds is None or row.step_s is None or row.typical_step_s is None:
        return ""
    return (
        f"a step takes {units.seconds(row.step_s.value)} in the mean, which all numbers rest on, "
        f"and typically {units.seconds(row.typical_step_s.value)}: {kinds(row.step_kinds)}"
    )


def kinds(found: StepKinds) -> str:
    """Say how many steps take how long."""
    short, long = units.seconds(found.short_s), units.seconds(found.long_s)
    num_long = round(found.long_share * (found.period or 0))
    if found.period is None or not 0 < num_long < found.period:
        return (
            f"{units.rough_percent(found.long_share)} of the steps take {long}, the others {short}"
        )
    if num_long == 1:
        return (
            f"{found.period - 1} of {found.period} steps take {short}, every "
            f"{ordinal(found.period)} {long}"
        )
    return f"of {found.period} steps {num_long} take {long}, the others {short}"


def ordinal(number: int) -> str:
    """Return 2nd for 2."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
