"""What is said of a run in each state, and of two runs, to the byte: tests/golden/words.txt."""

from pathlib import Path

from scalebench.report import render_table
from scalebench.report.findings.findings import judge
from scalebench.report.gate_ci import (
    render_verdict_github,
    render_verdict_junit,
    render_verdict_markdown,
    sentence,
)
from scalebench.report.gate_table import render_verdict
from scalebench.report.tables import memory
from scalebench.report.tables.layout import Screen
from tests.builders.rows.states import STATES, run_of
from tests.builders.shown.verdicts import VERDICTS
from tests.examples import cases
from tests.recorded import sections

RENEW = "if this was meant, `python -m tests.unit.report.test_words` renews it; look at `git diff`"
GOLDEN = Path(__file__).parents[2] / "golden" / "words.txt"


def words(name):
    """Notices, the verdict in brief, what stands below the main table, and the page's notes."""
    run = run_of(name)
    brief, whole = (render_table(run, 100, verbose=verbose) for verbose in (False, True))
    above, _, below = whole.partition(f"\n{run.rows[0].suite}\n")
    _, *lines = below[below.index("──") :].split("\n")
    verdict = brief[brief.index("verdict on suite") :]
    judged = judge(run)
    notes = [note for suite in judged.suites for found in suite.findings for note in found.notes]
    remembered = [memory.sentence(run.rows) or ""]
    return "\n".join([above, verdict, *lines[len(run.rows) :], *notes, *remembered, ""])


def gate_words(name):
    """One sentence, the table, and what a comment, an annotation and JUnit say of two runs."""
    result = VERDICTS[name]
    renderers = (render_verdict_markdown, render_verdict_github, render_verdict_junit)
    texts = [sentence(result), render_verdict(result, Screen())]
    return "\n".join([*texts, *(render(result) for render in renderers), ""])


TEXTS = {name: words for name in STATES} | {f"gate, {name}": gate_words for name in VERDICTS}


def text_of(name):
    return TEXTS[name](name.removeprefix("gate, "))


@cases("name", *TEXTS)
def test_what_is_said_is_what_was_said(name):
    assert text_of(name) == sections(GOLDEN).get(name), RENEW


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"#### {name}\n{text_of(name)}" for name in TEXTS), "utf-8")
