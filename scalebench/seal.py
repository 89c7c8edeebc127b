"""A checksum inside a JSON file: a flipped bit must not become a number.

The seal is the last field of the object, ``"sha256"``, over every byte of the file before it. The
file stays one JSON object that any reader reads; whoever wants to check it cuts the field off.
"""

import hashlib
import re

_SEALED = re.compile(r'(.*),\s*"sha256":\s*"([0-9a-f]{64})"\s*\}\s*', re.DOTALL)


class Broken(ValueError):
    """A text is not what was sealed."""


def sealed(text: str) -> str:
    """Return a JSON object with its seal.

    Args:
        text: An object that is not empty.
    """
    body = text.rstrip()
    if not body.endswith("}") or len(body.removesuffix("}").strip()) < 2:
        raise ValueError("only an object that is not empty is sealed")
    body = body.removesuffix("}").rstrip()
    return f'{body},"sha256":"{_digest(body)}"}}\n'


def check_seal(text: str) -> bool:
    """Tell whether a text bears a seal.

    Raises:
        Broken: It does, and is not what was sealed.
    """
    match = _SEALED.fullmatch(text)
    if match is None:
        return False
    if _digest(match[1]) != match[2]:
        raise Broken("its checksum is that of another content")
    return True


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", errors="surrogatepass")).hexdigest()
