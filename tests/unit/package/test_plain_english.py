"""What a user reads is plain English: words that were replaced do not come back.

Checked are all texts and docstrings in scalebench/, the help of every command and option, the
templates, README.md, CONTRIBUTING.md and docs/. Docstrings may use `ALLOWED_IN_DOCSTRINGS`.
Names of modules, classes, functions and arguments have none of the words of `VAGUE`.
"""

import ast
import re
from pathlib import Path

import click

from scalebench.cli import cli

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "scalebench"
PAPERS = ("README.md", "CONTRIBUTING.md")

REPLACED = {
    r"cannot be told from": "not significantly different from",
    r"cannot be told": "is not known; for two values: no significant difference",
    r"told apart": "separated, distinguished",
    r"to account": "check, test",
    r"[Nn]obody": "no rank, no one: say who",
    r"[Ww]hoever": "say who: the launcher, the reader",
    r"hits? all alike": "affects all equally",
    r"(held|holds?) (\S+ ){0,6}against": "compare with, check against",
    r"wolf": "inflates false positives",
    r"do not meet": "do not connect; of intervals: do not overlap",
    r"complain about": "No problems found",
    r"counts not": "is discarded",
    r"keep between": "reach",
    r"(went|go|goes|end) well": "succeeded",
    r"[Bb]eside": "next to, as well as, at the same time as",
    r"anew": "again",
    r"no word why": "no reason given",
    r"bears?": "has, carries",
    r"of (its|their) own": "own, separate",
    r"tells? of": "report",
    r"[Ww]hat was done is kept": "Results so far are kept",
    r"looked into": "traced, examined",
    r"dear": "costly",
    r"may not be had": "is not available",
    r"sealed|unsealed": "has a checksum",
    r"obituary": "exit message",
    r"mailbox": "store queue",
}
"""Word or phrase, as a pattern → what to write instead."""

ALLOWED_IN_DOCSTRINGS = {r"of (its|their) own", r"keep between", r"sealed|unsealed"}

VAGUE = {
    "told": "what it is: text, verdict, described, given",
    "judged": "concluded, checked, evaluated",
    "turn": "interleaved; of a ring: step, work",
    "turns": "interleaved; of a ring: step, work",
    "settle": "what happens: wait, restore, close",
    "settled": "what happened: waited, restored, closed",
}
"""Word that had several meanings in names → what to write instead."""

PATTERNS = [(re.compile(rf"\b(?:{old})\b"), new) for old, new in REPLACED.items()]


def complaints(text, allowed=()):
    """Return one line for each replaced phrase in a text; some may be allowed."""
    flat = " ".join(text.split())
    patterns = [(p, new) for p, new in PATTERNS if p.pattern[5:-3] not in allowed]
    found = ((pattern.search(flat), new) for pattern, new in patterns)
    return [
        f"{match[0]!r} in {flat[max(0, match.start() - 40) : match.end() + 40]!r}: write {new!r}"
        for match, new in found
        if match
    ]


def said_in(tree):
    """Return the docstrings of a module, its other texts, and the names that it gives.

    What stands below a constant is a docstring; the parts of an f-string are one text.
    """
    docstrings, texts, names = [], [], []
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
            docstrings.append(str(node.value.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            skipped.update(map(id, parts))
            texts.append("…".join(str(part.value) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts += [] if id(node) in skipped else [node.value]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
    return docstrings, texts, names


def words_of(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def commands(command):
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below)


def helps(command):
    yield command.help or ""
    yield from (getattr(option, "help", None) or "" for option in command.params)


def test_no_text_docstring_or_name_of_the_program_has_a_replaced_phrase():
    assert words_of("_HostWaits_in_turn2") >= {"host", "waits", "in"}
    modules = sorted(PACKAGE.rglob("*.py"))
    found = []
    for path in modules:
        docstrings, texts, names = said_in(ast.parse(path.read_text()))
        lines = [line for text in texts for line in complaints(text)]
        lines += [line for text in docstrings for line in complaints(text, ALLOWED_IN_DOCSTRINGS)]
        lines += [
            f"{name}: write {VAGUE[word]!r} instead of {word!r}"
            for name in (path.stem, *names)
            for word in sorted(words_of(name) & VAGUE.keys())
        ]
        found += [f"{path.relative_to(ROOT)}: {line}" for line in lines]
    assert len(modules) > 100 and not found, "\n".join(found)


def test_no_help_uses_a_replaced_phrase():
    every = list(commands(cli))
    found = [
        f"{command.name}: {line}"
        for command in every
        for text in helps(command)
        for line in complaints(text)
    ]
    assert len(every) > 12 and not found, "\n".join(found)


def test_no_template_or_document_uses_a_replaced_phrase():
    templates = [p for p in (PACKAGE / "report" / "templates").rglob("*") if p.is_file()]
    documents = [*(ROOT / name for name in PAPERS), *(ROOT / "docs").glob("*.md")]
    documents.append(PACKAGE / "report" / "words" / "marks.toml")
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted([*templates, *documents])
        for paragraph in path.read_text().split("\n\n")
        for line in complaints(paragraph)
    ]
    assert len(templates) > 3 and len(documents) > 10 and not found, "\n".join(found)
