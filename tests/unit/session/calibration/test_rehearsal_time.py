"""How many steps are played where steps are long."""

from scalebench.session.calibration.rehearsals import Length, how_often


def test_playing_counts_every_step() -> None:
    # the computation alone; 2 blocks of 4 steps that count and one that does not
    assert Length(1.0, 2.0).played_s(blocks=2, num_steps=4) == 1.0 + 2 * 5 * 2.0
    assert Length(1.0, 2.0).least_s == 1.0 + 2 * 2.0


def test_short_steps_are_played_often_and_long_ones_seldom() -> None:
    assert how_often([Length(0.1, 0.2)]) == {0: (2, 4)}
    assert how_often([Length(1.0, 2.0)]) == {0: (1, 4)}  # 11 s; two blocks take 21 s
    assert how_often([Length(1.0, 4.0)]) == {0: (1, 2)}
    assert how_often([Length(1.0, 8.0)]) == {0: (1, 1)}


def test_steps_that_are_too_long_are_left_out() -> None:
    assert how_often([Length(1.0, 10.0)]) == {}
    assert how_often([Length(0.1, 0.2), Length(1.0, 10.0)]) == {0: (2, 4)}
    assert how_often([]) == {}


def test_what_a_long_step_needs_is_not_there_for_short_ones() -> None:
    lengths = [Length(0.1, 0.28), Length(1.0, 8.5), Length(0.1, 0.28)]
    # 18 s for the long one; of the other 2 s each has one: 0.1 + 3 × 0.28 s
    assert how_often(lengths) == {1: (1, 1), 0: (1, 2), 2: (1, 2)}


def test_steps_of_the_same_length_share_the_time() -> None:
    # 5 s each: 0.4 + 5 × 0.8 s; two blocks take 8.4 s
    assert how_often([Length(0.4, 0.8)] * 4) == {0: (1, 4), 1: (1, 4), 2: (1, 4), 3: (1, 4)}
