"""The overview as Markdown, for an issue or a chat."""

from collections.abc import Sequence

from scalebench.report.markdown import code, escape
from scalebench.report.page.link_card import LinkCard
from scalebench.report.page.overview import Fact, FirstStep, SuiteCard


def overview_markdown(
    title: str,
    run: str,
    cards: Sequence[SuiteCard],
    timed: LinkCard | None,
    first: Sequence[FirstStep],
    facts: Sequence[Fact],
    reproduce: str,
) -> str:
    """Return the overview of a run.

    Args:
        title: What was run.
        run: Its name.
        cards: Of its suites.
        timed: Of its collectives.
        first: What to try first.
        facts: About the run; the command is left out of them.
        reproduce: The command.
    """
    blocks = [f"### {escape(title)}", escape(run, 200)]
    if first:
        lines = (_step(number, step) for number, step in enumerate(first, 1))
        blocks.append("\n".join(["**Try first**", "", *lines]))
    blocks += [_suite(card) for card in cards]
    if timed is not None:
        blocks.append(f"**{escape(timed.name)}**: {escape(timed.headline)}")
    told = [f"- {escape(one.name)}: {escape(one.text)}" for one in facts if one.name != "Repeat it"]
    blocks.append("\n".join(told))
    blocks.append(code(reproduce, 600))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _step(number: int, step: FirstStep) -> str:
    return f"{number}. {escape(step.action)}: {escape(step.gain)} ({escape(step.whence)})"


def _suite(card: SuiteCard) -> str:
    lines = [f"**{escape(card.name)}** ({escape(card.place)}): {escape(card.headline)}", ""]
    lines += [
        f"- {escape(line.name)}: {escape(line.text)}"
        + (f" (read with care: {escape(line.doubt)})" if line.doubt else "")
        for line in card.cases
    ]
    if card.more:
        lines.append(f"- {card.more} more")
    for name, text in (("Largest loss", card.loss), ("Try next", card.next_step)):
        if text:
            lines.append(f"- **{name}**: {escape(text)}")
    return "\n".join(lines)
