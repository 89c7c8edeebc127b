"""The secret of a world, with which processes sign; and secrets in texts, found and masked.

The secret reaches them in the environment (`VARIABLE`), or in a file that only their user can
read, which rank 0 writes where the others look for it and removes once all of them are there. A
file of an earlier world is not taken for it: rank 0 proves in the store that it knows the same
secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.paths import cache_folder

if TYPE_CHECKING:
    from scalebench.spec.world import Rendezvous

VARIABLE = "SCALEBENCH_SECRET"
TRUST = "SCALEBENCH_TRUST_NETWORK"
TRUSTED = "1"
LEAST_CHARACTERS = 32
LARGEST_FILE_BYTES = 4096
SIGNATURE_CHARACTERS = 64
ADVICE = (
    f"Give all of them the same one, for example export {VARIABLE}=$(openssl rand -hex 32) "
    f"(mpirun -x {VARIABLE}), or add --trust-network on a network that only you can reach."
)
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


class Forged(Exception):
    """What was read is not signed with the secret: no process of this run has written it."""


def new_secret() -> str:
    """Return a secret that no one can guess."""
    return secrets.token_hex(32)


def sign(secret: str, *parts: str) -> str:
    """Return the signature of texts in their order: HMAC-SHA256, in hexadecimal digits."""
    return hmac.new(secret.encode(), json.dumps(parts).encode(), "sha256").hexdigest()


def is_signed(signature: str, secret: str, *parts: str) -> bool:
    """Tell whether a signature is right; how long that takes says nothing about the right one."""
    return hmac.compare_digest(signature.encode(), sign(secret, *parts).encode())


def seal(secret: str, name: str, text: str) -> str:
    """Return a text with its signature before it, which holds under one name alone."""
    return sign(secret, name, text) + text


def unseal(secret: str, name: str, sealed: bytes) -> str:
    """Return the text that was sealed under a name.

    Raises:
        Forged: It was not sealed with this secret under this name.
    """
    whole = sealed.decode(errors="replace")
    signature, text = whole[:SIGNATURE_CHARACTERS], whole[SIGNATURE_CHARACTERS:]
    if not is_signed(signature, secret, name, text):
        raise Forged(f"{name} is not signed with the secret of this run")
    return text


def given_secret(environment: Mapping[str, str]) -> str | None:
    """Return the secret that the environment holds; None: it holds none.

    With `TRUST` it is one that everybody knows.

    Raises:
        UsageError: It is too short to be a secret.
    """
    given = environment.get(VARIABLE)
    if given is None:
        return "trusted" if environment.get(TRUST) == TRUSTED else None
    if len(given) < LEAST_CHARACTERS:
        raise UsageError(
            f"{VARIABLE} has {len(given)} characters and needs at least {LEAST_CHARACTERS}: "
            f"export {VARIABLE}=$(openssl rand -hex 32)."
        )
    return given


def secret_files(rendezvous: Rendezvous) -> list[Path]:
    """Return where rank 0 of a world puts the secret: every process works out the same paths.

    That is the user's cache folder and, on one machine, the temporary one; between machines, the
    working folder: one of them may be shared.
    """
    identity = [rendezvous.host, str(rendezvous.port), rendezvous.prefix]
    if rendezvous.one_node:  # another machine, which shares the folder, may have the same port
        identity += [socket.gethostname(), *_kernel_names()]
    name = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    last = Path(tempfile.gettempdir()) if rendezvous.one_node else Path.cwd()
    folders = [cache_folder(), last]
    return [folder / f".scalebench-world-{name}" for folder in folders]


def _kernel_names() -> list[str]:
    names = []
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        names.append(os.readlink("/proc/self/ns/net"))
    return names


class WorldSecret:
    """Rank 0's end: has the secret, and shares it unless the launcher passes it on.

    Attributes:
        value: The secret.

    Raises:
        EnvironmentUnfit: It cannot be shared.
    """

    def __init__(self, rendezvous: Rendezvous, environment: Mapping[str, str]) -> None:
        given = given_secret(environment)
        self.value = given or new_secret()
        self._files = [] if given else [f for f in secret_files(rendezvous) if self._write(f)]
        if not given and not self._files:
            places = " or ".join(str(path.parent) for path in secret_files(rendezvous))
            raise EnvironmentUnfit(
                f"The ranks need a secret, and none can be written to {places}. {ADVICE}"
            )

    def _write(self, path: Path) -> bool:
        """Write the secret to a new file, and put that in the place of one of that name."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".scalebench-world-")
        except OSError:
            return False
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(self.value)
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            return False
        return True

    def remove_files(self) -> None:
        """Remove the files: every process has read one, or will not any more."""
        for path in self._files:
            with suppress(OSError):
                if read_secret(path) == self.value:  # not that of a world that came after
                    path.unlink()
        self._files = []


def read_secret(path: Path) -> str | None:
    """Return the secret in a file; None: there is none that only this user can have written."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid():
            return None
        text = os.read(descriptor, LARGEST_FILE_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)
    return text if len(text) >= LEAST_CHARACTERS else None


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


def _masked(found: re.Match[str]) -> str:
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
