"""A measured number beside its target: met, or missed and by how much."""


def against_limit(value: float, limit: float, unit: str = "s") -> str:
    """Return one phrase that says whether ``value`` is at most ``limit``."""
    word = "met" if value <= limit else f"MISSED by {value - limit:.2f} {unit}"
    return f"{value:.2f} {unit}, target at most {limit:g} {unit}: {word}"


def print_section(title: str, *lines: str) -> None:
    """Print a heading with its lines, apart from pytest's own progress."""
    print(f"\n\n{title}")
    for line in lines:
        print(f"  {line}")
