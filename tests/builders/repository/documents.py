"""The documents' own programs and commands."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[3]


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


NEEDS_GPUS = re.compile(r"--gpus 1,2,4,8")


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a document in one language."""
    text = (ROOT / document).read_text()
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def commands(document: str) -> list[list[str]]:
    """Return the ``$ scalebench …`` lines of a document, without those that want a GPU box."""
    lines = "\n".join(blocks(document, "console")).splitlines()
    calls = [shlex.split(ln[2:], comments=True) for ln in lines if ln.startswith("$ scalebench ")]
    return [call[1:] for call in calls if not NEEDS_GPUS.search(" ".join(call))]
