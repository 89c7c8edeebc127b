"""What the gate says: one verdict for each case, world size and metric, and one for all.

Every renderer and exporter is a function of `GateResult`. A change is the plain ratio
``new / base - 1`` of the metric itself, whatever direction is good: for ``efficiency`` a fall of
5 % is -0.05 and worse, for ``step_s`` a rise of 5 % is +0.05 and worse.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from scalebench.errors import ExitCode

GATE_FORMAT = "scalebench.gate/1"

Verdict = Literal[
    "regressed",
    "probably regressed",
    "improved",
    "not worse",
    "unchanged",
    "no change seen",
    "inconclusive",
    "not comparable",
    "missing",
]
"""What the interval of the change says, see `scalebench.gate.family`. ``inconclusive``: there is no
interval. ``missing``: the baseline has it and the new run has not (not run, failed, or null)."""

WORSE: tuple[Verdict, ...] = ("regressed", "probably regressed")
"""What fails a build."""

SUITES = "suites"
"""The mismatch of two runs that do not have the same suites."""

Overall = Literal["passed", "regressed", "failed", "inconclusive", "not comparable"]
"""``failed``: cells of the new run failed, so that nothing can be said of them."""

Basis = Literal["launches", "single", "exact", "none"]
"""On what a verdict rests: ``launches``: an interval over launches; ``single``: one number on
each side, compared with the floor; ``exact``: a count or a prediction that has no noise, any
difference counts; ``none``: nothing could be compared."""

Noise = Literal["launches", "runs", "interleaved"]
"""What the promise on false alarms covers: ``launches``: how launches of one job differ, not how
jobs and hosts do; ``runs``: that, too, estimated from several accepted runs; ``interleaved``: both
versions were measured alternately in one job, so it does not arise."""

Unit = Literal["s", "bytes", "j", "ratio", "count", "loss"]

SEVERITY: tuple[Verdict, ...] = (
    *("regressed", "probably regressed", "missing", "not comparable", "inconclusive"),
    *("no change seen", "improved", "not worse", "unchanged"),
)
"""The verdicts in the order in which a reader wants to see them."""

EXIT_CODES: dict[Overall, ExitCode] = {
    "passed": ExitCode.OK,
    "regressed": ExitCode.REGRESSION,
    "failed": ExitCode.CELLS_FAILED,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "not comparable": ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True)
class RowVerdict:
    """The verdict on one metric of one case at one world size.

    Attributes:
        metric: Name of the field of the summary, for example ``step_s``; counts of collectives
            are ``all_reduce_count`` and so on.
        unit: Of ``base`` and ``new``.
        base: The metric in the baseline; null: it has none.
        new: The metric in the new run; likewise.
        change: ``new / base - 1``; null where one side is null, the base is 0, or the two are not
            comparable. For ``prediction_error``, itself a ratio, the difference of the magnitudes.
        low: Lower end of the interval of ``change``, see `GateResult.confidence`; null: none, see
            ``basis``, ``reason``.
        high: Upper end, likewise.
        floor: The smallest change that is of interest, as a ratio like ``change``: the relative
            floor or, where that is larger, the absolute one over ``base``.
        min_detectable: The smallest change for the worse that this comparison would have called
            ``regressed``, or probably so, 95 times in 100, a positive ratio; null: none.
        decides: Whether the verdict counts for the exit code; the others are shown only.
        no_worse: The interval excludes a change for the worse by the floor, and it is open whether
            it is better.
        failed: Missing because the new run failed there.
        higher_is_better: Direction; for all but efficiency and the like, lower is better.
        basis: On what the verdict rests.
        reason: One sentence: why this verdict and no other.
        p_value: Of no change at all (none beyond ``host_allowance``), against one in the direction
            of ``change``; of a row that decides corrected for their number (Bonferroni); null
            without an interval.
        rank_p_value: Of the exact rank test (Mann-Whitney) of the launches, one-sided in the
            direction of the change, uncorrected; a check in addition to ``p_value``.
        base_launches: Launches in the baseline that the verdict rests on.
        new_launches: The same of the new run.
        further_launches: How many more launches on each side would decide it, if the change and
            the noise stay what they are; null: decided, or no number up to 1000 would.
        explanation: Lines that say where the change comes from; empty: nothing to explain.
        base_runs: Accepted runs behind ``base``; of several, ``base`` is the mean.
        run_sd: By how much these differ beyond what their launches explain, a ratio (standard
            deviation); it is in the interval. Null: there is only one.
        host_allowance: By how much another host alone may change it, a ratio: a change within the
            floor and this is no regression. 0: one accepted run, or a metric that needs none.
    """

    suite: str
    case: str
    world_size: int
    metric: str
    unit: Unit
    verdict: Verdict
    base: float | None = None
    new: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    min_detectable: float | None = None
    decides: bool = True
    no_worse: bool = False
    failed: bool = False
    higher_is_better: bool = False
    basis: Basis = "none"
    reason: str = ""
    p_value: float | None = None
    rank_p_value: float | None = None
    base_launches: int = 0
    new_launches: int = 0
    further_launches: int | None = None
    explanation: tuple[str, ...] = ()
    base_runs: int = 1
    run_sd: float | None = None
    host_allowance: float = 0.0

    @property
    def place(self) -> tuple[str, str, int]:
        """Suite, case and world size: what the row of the summary is found by."""
        return (self.suite, self.case, self.world_size)

    @property
    def open(self) -> bool:
        """Whether it counts, and further launches could decide it."""
        undecided = self.verdict in ("probably regressed", "no change seen", "inconclusive")
        return self.decides and undecided and self.basis == "launches"


@dataclass(frozen=True)
class Mismatch:
    """Something that matters and differs between the two runs.

    Attributes:
        name: What ``--allow-mismatch`` takes, for example ``torch``.
        base: What the baseline has, as text; ``""``: nothing.
        new: What the new run has.
        where: ``""``: the whole run; else the row, for example ``ddp, N=2``.
        allowed: Whether the user said that it does not matter.
    """

    name: str
    base: str
    new: str
    where: str = ""
    allowed: bool = False

    @property
    def text(self) -> str:
        """``threads: 1 in the baseline, not recorded in the new run``."""
        base, new = (side or "not recorded" for side in (self.base, self.new))
        return f"{self.name}: {base} in the baseline, {new} in the new run"


SAME_RUN = "baseline and new run are the same run"
"""The note that takes the meaning from every other line, so it stands first."""


@dataclass(frozen=True)
class GateResult:
    """The verdict on a new run compared with its baseline.

    Attributes:
        base: The baseline, as the user named it.
        new: The new run, likewise.
        base_run_id: Its run's name; likewise ``new_run_id``.
        rows: In the order of the new run's table.
        mismatches: What differs in the fingerprints, allowed or not.
        notes: Lines that the reader has to know, for example rows without a baseline.
        confidence: Of the intervals of all rows that decide, together; of each of the others.
        false_alarm_rate: Of calls in which nothing changed, at most so many report a
            regression; see ``covers``.
        interleaved: Whether both versions were measured alternately in one job.
        need: The change for the worse that has to be found where there is one, a ratio; a row that
            could not have is inconclusive. Null: none is asked for.
        let_pass: Verdicts that the caller lets pass with exit code 0.
    """

    base: str
    new: str
    base_run_id: str
    new_run_id: str
    rows: tuple[RowVerdict, ...]
    mismatches: tuple[Mismatch, ...] = ()
    notes: tuple[str, ...] = ()
    confidence: float = 0.99
    false_alarm_rate: float = 0.01
    interleaved: bool = False
    need: float | None = None
    let_pass: tuple[Overall, ...] = ()

    @property
    def deciding(self) -> tuple[RowVerdict, ...]:
        """The rows that count for the exit code."""
        return tuple(row for row in self.rows if row.decides)

    @property
    def covers(self) -> Noise | None:
        """By what kind of noise the promise on false alarms holds; None: no row rests on launches.

        Where one row has a single accepted run, that of ``launches`` is all that is promised.
        """
        runs = [row.base_runs for row in self.deciding if row.basis == "launches"]
        if not runs:
            return None
        if self.interleaved:
            return "interleaved"
        return "runs" if min(runs) > 1 else "launches"

    @property
    def verdict(self) -> Overall:
        """The worst that holds: regressed, then failed, then not comparable, then inconclusive.

        A call that compared nothing is ``not comparable``: an empty result never passes.
        """
        found = {row.verdict for row in self.deciding}
        if found & set(WORSE):
            return "regressed"
        if any(row.failed for row in self.deciding):
            return "failed"
        other_suites = any(m.name == SUITES and not m.allowed for m in self.mismatches)
        if not found or found & {"not comparable", "missing"} or other_suites:
            return "not comparable"
        return "inconclusive" if "inconclusive" in found or self.too_blind else "passed"

    @property
    def too_blind(self) -> tuple[RowVerdict, ...]:
        """The rows that count and could not have seen what is needed."""
        if self.need is None:
            return ()
        unseen = [row for row in self.deciding if row.verdict == "no change seen"]
        return tuple(r for r in unseen if r.min_detectable is None or r.min_detectable > self.need)

    def is_open(self, row: RowVerdict) -> bool:
        """Tell whether further launches have to decide a row that counts.

        Not where no change is seen, and one of the size that is needed would have been.
        """
        seen_enough = self.need is not None and row.verdict == "no change seen"
        return row.open and (row in self.too_blind or not seen_enough)

    @property
    def exit_code(self) -> ExitCode:
        """What ``scalebench gate`` answers to its caller."""
        return ExitCode.OK if self.verdict in self.let_pass else EXIT_CODES[self.verdict]

    def of(self, verdict: Verdict) -> tuple[RowVerdict, ...]:
        """Return the rows with this verdict."""
        return tuple(row for row in self.rows if row.verdict == verdict)

    def as_json(self) -> dict[str, Any]:
        """Return the machine interface of ``gate --json``: names are a contract, add only."""
        told = asdict(self)
        rows = told.pop("rows")
        head = {
            "format": GATE_FORMAT,
            "verdict": self.verdict,
            "exit_code": int(self.exit_code),
            "covers": self.covers,
        }
        return {**head, **told, "rows": rows}
