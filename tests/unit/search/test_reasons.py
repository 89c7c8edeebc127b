"""Why one configuration is faster than another, in a sentence."""

from scalebench.search.choice import Choice
from scalebench.search.result import why_faster
from scalebench.search.step import PARTS

NOTHING = dict.fromkeys(PARTS, 0.0)
FIRST, SECOND = list(PARTS)[:2]


def choice(first_s: float, second_s: float, **changes: int) -> Choice:
    parts = NOTHING | {FIRST: first_s, SECOND: second_s}
    return Choice(**{"data": 1, **changes}, step_s=first_s + second_s, parts_s=parts)


def test_the_part_that_gains_most_is_named_with_what_it_gains() -> None:
    told = why_faster(choice(0.008, 0.002, data=4), choice(0.011, 0.0021, tensor=4))
    assert told == (
        f"data 4 is 3.10 ms (31 %) faster than tensor 4: it spends 3.00 ms less on {PARTS[FIRST]}."
    )


def test_a_part_that_loses_is_named_where_it_counts() -> None:
    told = why_faster(choice(0.008, 0.002, data=4), choice(0.011, 0.001, tensor=4))
    assert "data 4 is 2.00 ms (20 %) faster than tensor 4" in told
    assert told.endswith(f"3.00 ms less on {PARTS[FIRST]}, and 1.00 ms more on {PARTS[SECOND]}.")


def test_equal_steps_are_said_to_be_equal() -> None:
    told = why_faster(choice(0.008, 0.002, data=4), choice(0.008, 0.002, tensor=4))
    assert told.startswith("data 4 and tensor 4 take equally long")
