"""Whether a user's script trains rightly, in sentences.

What is wrong begins with ``CHECK`` and says what to do. A note is no error: it says what is so.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from scalebench.records.rows.script import LearningRate, ScriptChecks
from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.warnings import marks

LEAST_TO_NORMALISE = 16
"""Samples: with fewer BatchNorm's error grows. Source: Wu & He, Group Normalization, 2018."""

MOST_SHARED = 0.05
"""Of the samples: a data set may hold some twice."""

Kind = Literal["wrong", "right", "note", "unknown"]


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
