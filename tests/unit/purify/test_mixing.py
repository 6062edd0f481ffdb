"""Which rollouts are purified, and the schedule of how many."""

import pytest

from retcon.purify.mixing import Schedule, constant, linear, purified


def drawn(probability: float, **changed: int) -> list[bool]:
    where = {"seed": 1, "step": 2} | changed
    return [purified(probability, where["seed"], where["step"], "p", index) for index in range(400)]


def test_mixing_is_reproducible_and_hits_its_share():
    assert drawn(0.7) == drawn(0.7)
    assert 0.62 < sum(drawn(0.7)) / 400 < 0.78
    assert drawn(0.7) != drawn(0.7, step=3)
    assert drawn(0.7) != drawn(0.7, seed=3)


def test_the_draw_is_the_same_in_every_version():
    """A run that was begun with an earlier one goes on with the same rollouts purified."""
    assert "".join("01"[it] for it in drawn(0.5)[:20]) == "01101011010011000110"


def test_mixing_at_its_ends():
    assert not any(drawn(0.0))
    assert all(drawn(1.0))


def test_a_higher_share_only_adds():
    assert all(more for less, more in zip(drawn(0.3), drawn(0.6), strict=True) if less)


def test_a_constant_and_a_line():
    assert [constant(0.7).at(step) for step in (0, 1, 99)] == [0.7] * 3
    assert [linear(1.0, 0.0, 5).at(step) for step in (0, 1, 2, 3, 5, 6)] == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]


def test_a_schedule_in_pieces_may_jump():
    pieces = Schedule(((1, 0.0), (3, 1.0), (5, 1.0), (5, 0.5), (9, 0.3)))
    assert [pieces.at(step) for step in (1, 2, 3, 4, 5, 7, 10)] == [0.0, 0.5, 1.0, 1.0, 0.5, pytest.approx(0.4), 0.3]


def test_the_draw_at_a_step_hangs_on_its_p_alone():
    falling = linear(1.0, 0.0, 11)
    shares = [sum(purified(falling.at(step), 1, step, "p", index) for index in range(400)) / 400 for step in (1, 6, 11)]
    assert (shares[0], shares[2]) == (1.0, 0.0)
    assert 0.42 < shares[1] < 0.58
    assert drawn(falling.at(6), step=6) == drawn(0.5, step=6)


@pytest.mark.parametrize(
    ("points", "message"), [((), "at least one"), (((1, 1.5),), r"\[0, 1\]"), (((5, 0.1), (4, 0.2)), "not decrease")]
)
def test_a_schedule_that_is_none_is_refused(points, message):
    with pytest.raises(ValueError, match=message):
        Schedule(points)
