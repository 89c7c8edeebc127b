"""Secrets in command lines and texts: found by their names and by how tokens look, and masked."""

import re
from collections.abc import Iterator, Sequence

MASK = "***"

_ALWAYS = frozenset(
    {
        *("secret", "secrets", "password", "passwd", "passphrase", "passcode", "pwd", "pat"),
        *("auth", "authorization", "credential", "credentials", "creds", "cookie", "apikey"),
    }
)
"""Words that make a name that of a secret, wherever in it they stand."""

_LAST = ("token", "key", "password", "passwd", "secret")
"""The same, as the last word; ``apitoken`` and ``hfkey`` end like that too."""

_INNOCENT = frozenset(
    {
        *("key", "monkey", "turkey", "keypair"),
        *("sort", "order", "group", "by", "on", "for", "per", "of", "num", "max", "min", "first"),
        *("last", "next", "mean", "pad", "eos", "bos", "unk", "mask", "sep", "cls", "special"),
        *("start", "end", "stop", "begin", "image", "video", "audio", "text", "caption", "label"),
        *("class", "data", "dataset", "batch", "input", "output", "target", "prompt", "answer"),
        *("column", "field", "feature", "dict", "state", "cache", "primary", "foreign", "public"),
        *("metric", "loss", "partition", "shard", "split", "sample", "query", "map", "new"),
    }
)
"""Before ``key`` or ``token`` as the last word: a key of data, a token of text."""

_NO_VALUE = frozenset({"true", "false", "yes", "no", "none", "null", "on", "off", "0", "1", ""})
"""What a switch called like a secret, ``--use-auth-token true``, is set to."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME = r"[A-Za-z_](?:[\w.-]*\w)?"
_OPTION = re.compile(rf"(--?{_NAME}|{_NAME})=(.*)", re.DOTALL)
_FLAG = re.compile(rf"--?{_NAME}")
_SET = re.compile(
    rf"(?<![\w.-])(?P<name>-{{0,2}}{_NAME})(?P<sign>[\"']?\s*[=:]\s*|\s+)(?:Bearer\s+|Basic\s+)?"
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|[^\s"',;)}&]+)"""
)
"""A name and what it is set to, in a text: ``--token X``, ``token=X``, ``"token": "X"``."""

_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?=[\w-]*\d)[\w-]{8,}|gh[opsur]_\w{12,}|github_pat_\w{12,}|hf_[A-Za-z0-9]{12,}"
    r"|xox[a-z]-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|glpat-[\w-]{12,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?"
    r")"
)
_USERINFO = re.compile(r"(?<=://)(?:[^\s/@:\"']*:[^\s/@\"']*|(?<=https://)[^\s/@:\"']+)(?=@)")


def names_a_secret(name: str) -> bool:
    """Tell whether an option, a variable or a field is called as secrets are."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if not _ALWAYS.isdisjoint(words):
        return True
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    return last.endswith(_LAST) and last not in _INNOCENT - {"key"} and before not in _INNOCENT


def without_secrets(text: str) -> str:
    """Return a text in which secrets are masked.

    Of what is called like a secret, what it is set to; and whatever looks like a token.
    """
    if "://" in text:
        text = _USERINFO.sub(MASK, text)
    return _SET.sub(_masked, _TOKENS.sub(MASK, text))


def _masked(found: "re.Match[str]") -> str:
    name, value = found["name"], found["value"].strip("\"'")
    joined = "=" in found["sign"] or ":" in found["sign"]
    is_set = name.startswith("-") or (joined and name != "key")  # sorted(names, key=len)
    if not is_set or not names_a_secret(name) or not _is_value(value):
        return found[0]
    return found[0][: found.start("value") - found.start()] + found["value"].replace(value, MASK)


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, secrets masked; see `without_secrets`."""
    return [masked for _, masked in _pairs(words)]


def secret_values(words: Sequence[str]) -> set[str]:
    """Return the values in a command line that are masked because of their names."""
    found = set()
    for word, masked in _pairs(words):
        if masked.endswith(MASK) and word != masked:
            start = masked.removesuffix(MASK)
            found.add(word.removeprefix(start))
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word, and what is stored and shown in its place."""
    before = ""
    for word in words:
        option = _OPTION.fullmatch(word)
        if _FLAG.fullmatch(before) and names_a_secret(before) and _is_value(word):
            yield word, MASK
        elif option and names_a_secret(option[1]) and _is_value(option[2]):
            yield word, f"{option[1]}={MASK}"
        else:
            yield word, without_secrets(word)
        before = word


def _is_value(text: str) -> bool:
    return text.lower() not in _NO_VALUE and not _FLAG.fullmatch(text)
