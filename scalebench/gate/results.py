"""What a user names as BASE and NEW, and whether the two can be compared at all.

Machine, software, and what each row was made of; which of several accepted runs count together.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalebench.errors import unknown_name
from scalebench.gate.result import SAME_RUN, SUITES, Mismatch
from scalebench.records.summary import Row, RowKey, Summary, key_of

ENVIRONMENT = (
    *("devices", "driver", "machine", "cpu", "cores", "cgroup_cpus"),
    *("threads", "torch", "cuda", "hip", "nccl", "cudnn"),
)
"""Fields of the fingerprint without whose agreement times cannot be compared."""

PINNED = "pinned"
"""Where the ranks ran: it changes times, and no count of bytes and collectives."""

ROW = (
    *("device", "backend", "strategy", "workload", "num_parameters", "scaling"),
    *("global_batch", "rank_batch", "oversubscribed", "virtual_hosts", "link", "cpus_per_rank"),
    *("cpu_shares", PINNED),
)
"""Fields that make the specification of a row, in addition to the settings of its strategy."""

ALL_OF_ROW = "case"
"""``--allow-mismatch case`` allows everything of `ROW` and every setting of the strategy."""

LINK_PROFILE = "link_profile"
"""Predictions rest on the links of another machine, so their error says nothing of a change."""

RESTS_ON_LINKS = ("prediction_error",)
"""Metrics that it matters to; no other one."""

MATTERS_TO_EXACT = ("torch",)
"""Of the environment: what changes counts of bytes and collectives. No device does."""

_LONGEST = 60


def environment_mismatches(
    base: Mapping[str, Any], new: Mapping[str, Any], allowed: Collection[str]
) -> list[Mismatch]:
    """Return what differs in two fingerprints and matters; what a log does not say does not."""
    return [
        Mismatch(name, _text(ours), _text(theirs), allowed=name in allowed)
        for name in ENVIRONMENT
        if (ours := _read(base, name)) != (theirs := _read(new, name))
        and not (_unsaid(base, ours) or _unsaid(new, theirs))
    ]


def _unsaid(environment: Mapping[str, Any], value: Any) -> bool:
    return bool(environment.get("imported")) and not value


def profile_mismatches(base: Summary, new: Summary, allowed: Collection[str]) -> list[Mismatch]:
    """Return whether a run's predictions rest on a link profile that is not of its machine."""
    ours, theirs = _origin(base), _origin(new)
    if ours == theirs == _OWN_LINKS:
        return []
    return [Mismatch(LINK_PROFILE, ours, theirs, allowed=LINK_PROFILE in allowed)]


_OWN_LINKS = "of the run's machine"


def _origin(summary: Summary) -> str:
    differs = (summary.model or {}).get("profile_differs")
    names = [str(name) for name in differs] if isinstance(differs, list) else []
    return _text(f"of another machine: {', '.join(names)}") if names else _OWN_LINKS


def row_mismatches(base: Row, new: Row, allowed: Collection[str]) -> list[Mismatch]:
    """Return what differs in the specification of two rows of the same name.

    ``num_parameters`` that one side does not know (no launch of it succeeded) is no difference.
    """
    where = f"{new.case}, N={new.world_size}"
    found = [
        Mismatch(name, _text(getattr(base, name)), _text(getattr(new, name)), where)
        for name in ROW
        if getattr(base, name) != getattr(new, name)
        and not (name == "num_parameters" and None in (base.num_parameters, new.num_parameters))
    ]
    if base.strategy == new.strategy:
        settings = sorted({*base.strategy_settings, *new.strategy_settings})
        found += [
            Mismatch(name, _text(ours), _text(theirs), where)
            for name in settings
            if (ours := base.strategy_settings.get(name))
            != (theirs := new.strategy_settings.get(name))
        ]
    return [replace(m, allowed=m.name in allowed or ALL_OF_ROW in allowed) for m in found]


def check_names(names: Collection[str], rows: Collection[Row]) -> None:
    """Refuse a name that ``--allow-mismatch`` cannot mean.

    Raises:
        UsageError: There is no such property, nor a setting of a strategy in the runs.
    """
    settings = {name for row in rows for name in row.strategy_settings}
    valid = {*ENVIRONMENT, *ROW, ALL_OF_ROW, LINK_PROFILE, SUITES, *settings}
    for name in names:
        if name not in valid:
            raise unknown_name("property for --allow-mismatch", name, valid)


def notable(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs, may explain a change, and does not forbid the comparison."""
    notes = []
    ours, theirs = base.get("variables"), new.get("variables")
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}, key=str):
            if ours.get(name) != theirs.get(name):
                was, is_ = _text(ours.get(name)), _text(theirs.get(name))
                notes.append(f"{name} was {was or 'not set'} and is {is_ or 'not set'}")
    for name in ENVIRONMENT:
        said = _text(_read(base, name)), _text(_read(new, name))
        if base.get("imported") and new.get("imported") and bool(said[0]) != bool(said[1]):
            notes.append(f"{name}: only one side's logs name it ({said[0] or said[1]})")
    for name in ("host", "os", "python"):
        if _text(base.get(name)) != _text(new.get(name)):
            notes.append(f"{name} was {_text(base.get(name))} and is {_text(new.get(name))}")
    return notes


def _read(environment: Mapping[str, Any], name: str) -> Any:
    if name != "devices":
        return environment.get(name)
    devices = environment.get("devices")
    listed = devices if isinstance(devices, list) else []
    return [d.get("name") if isinstance(d, Mapping) else d for d in listed]


def _text(value: Any) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        counted = {str(item): value.count(item) for item in value}
        value = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counted.items())
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@dataclass(frozen=True)
class Results:
    """What a user named as BASE or NEW: one summary, or the several of a baseline folder.

    Attributes:
        partial: Whether suites that the other side has not run are no loss: of a baseline folder.
        repeats: Further accepted runs of the same suites, which tell how much runs differ.
    """

    name: str
    summaries: tuple[Summary, ...]
    partial: bool = False
    repeats: tuple[Summary, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for summary in self.summaries for row in summary.rows]

    def by_key(self) -> dict[RowKey, tuple[Row, Summary]]:
        """Return every row with the summary that it stands in."""
        return {key_of(row): (row, summary) for summary in self.summaries for row in summary.rows}


def decisive_rows(base: Results, new: Results) -> set[RowKey]:
    """Return the rows whose noisy numbers decide: of each case the largest N that both measured."""
    ours, theirs = base.by_key(), new.by_key()
    largest: dict[tuple[str, str], int] = {}
    for key in ours.keys() & theirs.keys():
        if ours[key][0].status == theirs[key][0].status == "ok":
            suite, case, size = key
            largest[suite, case] = max(size, largest.get((suite, case), 0))
    return {(*place, size) for place, size in largest.items()}


def suite_mismatches(base: Results, new: Results, allowed: Collection[str]) -> list[Mismatch]:
    """Return whether the new run lacks whole suites; of a baseline folder that is no loss."""
    ours, theirs = (dict.fromkeys(row.suite for row in side.rows) for side in (base, new))
    if base.partial or ours.keys() <= theirs.keys():
        return []
    return [Mismatch(SUITES, ", ".join(ours), ", ".join(theirs), allowed=SUITES in allowed)]


def notes_on(base: Results, new: Results) -> list[str]:
    """Return what the reader has to know of two results before any number."""
    notes = []
    if {s.run_id for s in base.summaries} & {s.run_id for s in new.summaries}:
        notes.append(SAME_RUN)
    for ours in base.summaries:
        for theirs in new.summaries:
            notes += notable(ours.environment, theirs.environment)
            versions = (ours.scalebench_version, theirs.scalebench_version)
            if versions[0] != versions[1]:
                notes.append(f"scalebench was {versions[0]} and is {versions[1]}")
    for side, results in (("baseline", base), ("new run", new)):
        for summary in results.summaries:
            if summary.status != "complete":
                notes.append(f"the {side} is not complete: {summary.status}")
            notes += [f"{side}: {notice}" for notice in summary.damage]
    return list(dict.fromkeys(notes))


def mismatches_of(
    base: Summary, new: Sequence[Summary], allowed: Collection[str]
) -> list[Mismatch]:
    """Return what of a summary's environment differs in the new ones and matters."""
    return [
        mismatch
        for theirs in new
        for mismatch in (
            *environment_mismatches(base.environment, theirs.environment, allowed),
            *profile_mismatches(base, theirs, allowed),
        )
    ]


def usable(base: Results, new: Results) -> tuple[Results, list[str]]:
    """Return the baseline with the accepted runs that count, and a note on each that does not.

    A further run counts where its machine and software are those of the suite's first one, and
    where it is not the new run itself.
    """
    kept, notes = [], []
    judged = {summary.run_id for summary in new.summaries}
    for run in base.repeats:
        why = "it is the new run" if run.run_id in judged else _differs(run, base.summaries)
        if why:
            notes.append(f"accepted run {run.run_id} is left out: {why}")
        else:
            kept.append(run)
    return replace(base, repeats=tuple(kept)), notes


def _differs(run: Summary, firsts: Sequence[Summary]) -> str:
    """Say in what a run differs from the first one of its suites; empty: in nothing."""
    suites = {row.suite for row in run.rows}
    for first in firsts:
        if suites & {row.suite for row in first.rows}:
            found = environment_mismatches(first.environment, run.environment, ())
            if found:
                return f"{found[0].name} was {found[0].base} and is {found[0].new}"
    return ""


def further_runs(row: Row, base: Results) -> Iterator[tuple[Row, list[Row]]]:
    """Yield a row of the baseline as further accepted runs have it, each with its run's rows.

    A run in which the row failed, or was specified differently, is passed over.
    """
    for run in base.repeats:
        found = next((other for other in run.rows if key_of(other) == key_of(row)), None)
        if found is not None and found.status == "ok" and not row_mismatches(row, found, ()):
            yield found, run.rows
