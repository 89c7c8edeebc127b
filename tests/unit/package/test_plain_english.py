"""What a user reads is plain English: words that were replaced do not come back.

Checked are all texts and docstrings in scalebench/, the help of every command and option, the
templates, README.md, CONTRIBUTING.md and docs/, and the names of modules, classes, functions and
arguments.
"""

import ast
import re
from pathlib import Path

import click

from scalebench.cli import cli
from tests.recorded import pairs, sections

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "scalebench"
PAPERS = ("README.md", "CONTRIBUTING.md")

REPLACED = {place: pairs(rows) for place, rows in sections("replaced_words.txt").items()}
IN_DOCSTRINGS, VAGUE = REPLACED["in texts and docstrings"], REPLACED["in names"]
IN_TEXTS = IN_DOCSTRINGS | REPLACED["in texts"]


def complaints(text, replaced=IN_TEXTS):
    """Return one line for each replaced phrase in a text."""
    flat = " ".join(text.split())
    found = ((re.search(rf"\b(?:{old})\b", flat), new) for old, new in replaced.items())
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
        lines += [line for text in docstrings for line in complaints(text, IN_DOCSTRINGS)]
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
