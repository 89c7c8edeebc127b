"""The suite that compares strategies across suites: what ``run --strategies ddp,fsdp`` runs."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from scalebench.errors import UsageError
from scalebench.session.suites.files import load_suites, suite_files
from scalebench.spec import Case, Plain, StepPlan, Suite

NAME = "strategies"
USUAL_WORKLOAD = "gpt"


def strategies_suite(names: tuple[str, ...], workload: str | None) -> Suite:
    """Return one suite of several strategies, with one baseline and one workload.

    All of its rows take turns, so that each gets a fair share of the time.

    ``names``: cases of the suites, or suites: all cases that such a suite runs by default.
    ``workload`` None: the one that the strategies' suites are made for.

    Raises:
        UsageError: There is no such strategy, or they are made for different workloads.
    """
    comparable = _comparable([*suite_files()])
    cases: dict[str, Case] = {"plain": Case(name="plain", strategy=Plain())}
    made_for: dict[str, str] = {}
    for name in names:
        suite, chosen = _found(name, comparable)
        if suite.workload != USUAL_WORKLOAD:
            made_for[name] = suite.workload
        alike = {"optional": False, "batch_size": None}
        cases |= {case.name: case.model_copy(update=alike) for case in chosen}
    if workload is None and len(set(made_for.values())) > 1:
        told = ", ".join(f"{name} for {of}" for name, of in made_for.items())
        raise UsageError(
            f"--strategies compares on one workload, and these are made for several ({told}): "
            "name one with --workload."
        )
    return Suite(
        name=NAME,
        question="Which of these strategies trains fastest here, and which needs least memory?",
        cases=tuple(cases.values()),
        workload=next(iter(made_for.values()), USUAL_WORKLOAD),
        steps=StepPlan(window_s=0.4, rounds_s=0.4, min_steps=8),
    )


def known_strategies(suite_names: Sequence[str]) -> set[str]:
    """Return what may be compared of some suites: their cases, and the suites themselves."""
    suites = _comparable(suite_names)
    cases = {case.name for suite in suites for case in _strategies(suite)}
    return cases | {suite.name for suite in suites}


def _comparable(names: Sequence[str]) -> list[Suite]:
    """Return the suites whose steps are measured, not races or recoveries."""
    suites = load_suites(names)
    return [s for s in suites if s.race is None and s.recovery is None and s.cases]


def _found(name: str, suites: Sequence[Suite]) -> tuple[Suite, list[Case]]:
    """Return the cases that a name stands for: that of a case goes before that of a suite."""
    # The suite of a case's own name knows best what the case is made for.
    ordered = sorted(suites, key=lambda suite: suite.name != name)
    for suite in ordered:
        for case in _strategies(suite):
            if case.name == name:
                return suite, [case]
    for suite in ordered:
        if suite.name == name:
            return suite, [case for case in _strategies(suite) if not case.optional]
    nearest = get_close_matches(name, known_strategies([*suite_files()]), n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    names = ", ".join(sorted(suite.name for suite in suites))
    raise UsageError(
        f"There is no strategy {name!r}.{hint} Valid: {names}, and each of their cases "
        "(scalebench list suites)."
    )


def _strategies(suite: Suite) -> Iterator[Case]:
    return (case for case in suite.cases if not isinstance(case.strategy, Plain))
