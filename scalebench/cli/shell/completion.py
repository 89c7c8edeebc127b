"""What a shell offers when Tab is pressed: names that exist here, else files."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from scalebench.errors import ScalebenchError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SCRIPT = "scalebench.script"
"""Where a context keeps the words of the user's script; None: there is no ``--``."""

WORDS = "scalebench.words"
"""Where it keeps those that stand before."""


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        start = 1 + max(incomplete.rfind(" "), incomplete.rfind(","))  # the last word
        before, word = incomplete[:start], incomplete[start:]
        try:
            found = [name for name in names(context) if name.startswith(word)]
        except ScalebenchError:
            found = []
        items = [CompletionItem(before + name) for name in found]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


def _suites(context: click.Context) -> Iterable[str]:
    from scalebench.session.suites.files import suite_files

    return [] if context.meta.get(SCRIPT) is not None else sorted(suite_files())


def _workloads(_: click.Context) -> Iterable[str]:
    from scalebench.spec.presets import PRESETS

    return PRESETS


def _cases(context: click.Context) -> Iterable[str]:
    """Return the cases of the suites that come with scalebench; others would be executed."""
    from scalebench.session.suites.files import core_suites, load_suites, own_suites, suite_files

    # Where -k has no value yet, click has not told suites from options.
    named = {*context.meta.get(WORDS, ())} & suite_files().keys() or {*core_suites()}
    bundled = sorted(named - own_suites().keys())
    return {case.name: 0 for suite in bundled for s in load_suites([suite]) for case in s.cases}


def _strategies(_: click.Context) -> Iterable[str]:
    from scalebench.session.suites.files import known_strategies, own_suites, suite_files

    return known_strategies(sorted(suite_files().keys() - own_suites().keys()))


def _runs(_: click.Context) -> Iterable[str]:
    from scalebench.records.paths import baselines_folder, default_runs_folder
    from scalebench.records.storage.folder import find_runs

    runs = [run.name for run in find_runs(default_runs_folder())]
    return [*runs, *sorted(folder.name for folder in baselines_folder().glob("*/"))]


def _formats(_: click.Context) -> Iterable[str]:
    from scalebench.report.export import FORMATS

    return FORMATS


suites, workloads, cases = _offering(_suites), _offering(_workloads), _offering(_cases)
strategies = _offering(_strategies)
runs, formats = _offering(_runs), _offering(_formats)
