"""What people type to choose: ``-k EXPR``, cases by name; ``--gpus N,N``, numbers of ranks."""

import re

from scalebench.errors import UsageError

_WORD = re.compile(r"(?!(?:and|or|not)$)[A-Za-z0-9._+-]+")
MAX_RANKS = 65536
_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z0-9._+-]+|\S)")


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in ``1,2,4``, in rising order, each once.

    Raises:
        UsageError: It is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if re.fullmatch(r"\d{1,9}", part, re.ASCII)]
    if not numbers or len(numbers) < len(parts) or not all(0 < n <= MAX_RANKS for n in numbers):
        raise UsageError(
            f"{text!r} is not a list of rank counts. Give whole numbers of at least 1, "
            "separated by commas, for example 1,2,4."
        )
    return tuple(sorted(set(numbers)))


def matches(expression: str, name: str) -> bool:
    """Tell whether a case's name is chosen by an expression.

    A word matches the names that contain it; ``and``, ``or``, ``not`` and parentheses combine.

    Raises:
        UsageError: The expression cannot be read.
    """
    return _Parser(expression, name).parse()


def words(expression: str) -> list[str]:
    """Return the words of an expression, without the operators."""
    return [token for token in _TOKEN.findall(expression) if _WORD.fullmatch(token)]


class _Parser:
    """Recursive descent over ``or`` < ``and`` < ``not`` < word or parentheses."""

    def __init__(self, expression: str, name: str) -> None:
        self.expression = expression
        self.name = name
        self.tokens = _TOKEN.findall(expression)

    def parse(self) -> bool:
        try:
            value = self.either()
        except RecursionError:
            raise self.unreadable("its depth: it is nested too deeply") from None
        if self.tokens:
            raise self.unreadable(repr(self.tokens[0]))
        return value

    def either(self) -> bool:
        value = self.both()
        while self.accept("or"):
            value = self.both() or value
        return value

    def both(self) -> bool:
        value = self.negated()
        while self.accept("and"):
            value = self.negated() and value
        return value

    def negated(self) -> bool:
        if self.accept("not"):
            return not self.negated()
        if self.accept("("):
            value = self.either()
            if not self.accept(")"):
                raise self.unreadable("its end: a parenthesis is open")
            return value
        if not self.tokens or not _WORD.fullmatch(self.tokens[0]):
            raise self.unreadable(repr(self.tokens[0]) if self.tokens else "its end")
        return self.tokens.pop(0) in self.name

    def accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            del self.tokens[0]
            return True
        return False

    def unreadable(self, where: str) -> UsageError:
        return UsageError(
            f"-k {self.expression!r} cannot be read at {where}. Give words that case names "
            "contain, joined by 'and', 'or', 'not' and parentheses."
        )
