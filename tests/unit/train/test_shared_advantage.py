"""Advantages of rollouts that branch: ARPO's hard mean on what they share, Fission-GRPO's groups of recoveries."""

import pytest

from retcon.core.types import Branch, Sample, Segment, Trajectory, Turn
from retcon.train.algorithms.dr_grpo import DrGrpo
from retcon.train.objective.credit import average_shared
from retcon.train.objective.shaping import advantages_of
from retcon.train.update import to_samples


def sample(ids: tuple[int, ...], advantage: float, tree: str = "t/0") -> Sample:
    nothing = (0,) * len(ids)
    return Sample(ids, nothing, (None,) * len(ids), nothing, (advantage,) * len(ids), tree=tree)


def advantages(*samples: Sample) -> list[tuple[float, ...] | None]:
    return [one.advantages for one in average_shared(samples)]


def test_what_is_shared_has_the_mean_of_those_that_share_it_and_the_rest_its_own() -> None:
    root = sample((1, 2, 3, 4, 5), 3.0)
    branch = sample((1, 2, 3, 7), 0.0)
    twig = sample((1, 2, 3, 7, 8), -1.5)
    other_twig = sample((1, 2, 9), 0.5)
    assert advantages(root, branch, twig, other_twig) == [
        (0.5, 0.5, 0.5, 3.0, 3.0), (0.5, 0.5, 0.5, -0.75), (0.5, 0.5, 0.5, -0.75, -1.5), (0.5, 0.5, 0.5),
    ]  # fmt: skip


def test_each_of_two_branches_that_part_again_later_has_the_mean_of_its_own() -> None:
    ids = ((1, 2, 5, 6), (1, 2, 5, 7), (1, 3, 5, 6), (1, 3, 5, 7))
    found = advantages(*(sample(one, advantage) for one, advantage in zip(ids, (4.0, 2.0, 1.0, -3.0), strict=True)))
    assert found == [(1.0, 3.0, 3.0, 4.0), (1.0, 3.0, 3.0, 2.0), (1.0, -1.0, -1.0, 1.0), (1.0, -1.0, -1.0, -3.0)]


def test_ids_that_are_equal_after_others_that_are_not_are_not_shared() -> None:
    assert advantages(sample((1, 2, 5), 1.0), sample((1, 3, 5), -1.0)) == [(0.0, 1.0, 1.0), (0.0, -1.0, -1.0)]


def test_other_trees_and_rollouts_of_none_keep_their_own() -> None:
    ids = (1, 2)
    found = advantages(
        sample(ids, 1.0), sample(ids, 0.0), sample(ids, 4.0, "t/5"), sample(ids, 2.0, ""), sample(ids, 8.0, "")
    )
    assert found == [(0.5, 0.5), (0.5, 0.5), (4.0, 4.0), (2.0, 2.0), (8.0, 8.0)]


def test_the_sum_over_the_copies_of_a_token_stays() -> None:
    """Hence the same gradient, where no ratio is clipped and one minibatch has them all."""
    samples = [sample((1, 2, 3), 0.7), sample((1, 2, 4), -0.1), sample((1, 2), 0.3)]
    found = advantages(*samples)
    for place in range(2):
        assert sum(one[place] for one in found if one) == pytest.approx(0.9)


def test_samples_without_advantages_are_refused() -> None:
    with pytest.raises(ValueError, match="has no advantages"):
        average_shared([Sample((1,), (1,), (0.0,), (0,), tree="t/0")])


def test_recoveries_of_one_failed_call_are_a_group_of_their_own_and_learnt_from_there_on() -> None:
    """Means: of the two from the prompt 0, of the three recoveries -1/3, of the one alone there is none."""
    first = Turn((Segment("sampled", "ab", (2, 3), (-1.0, -1.0)), Segment("observation", "e", (4,))))

    def made(name: str, reward: float, left: tuple[str, int] | None = None) -> Trajectory:
        own = Turn((Segment("sampled", name, (5, 6), (-1.0, -1.0)),))
        branch = left and Branch(left[0], "p/0", left[1], 1 + 3 * left[1], 0.0, 0.0)
        turns = (first,) * (left[1] if left else 1)
        return Trajectory(name, "p", (Segment("prompt", "p", (1,)),), (*turns, own), reward=reward, branch=branch)

    group = [made("p/0", 1.0), made("p/1", -1.0), made("p/2", 1.0, ("p/0", 1)), made("p/3", -1.0, ("p/0", 1)),
             made("p/4", -1.0, ("p/0", 1)), made("p/5", 1.0, ("p/2", 2))]  # fmt: skip
    config = DrGrpo(shared_advantage="siblings")
    (found,) = advantages_of([group], [[t.reward or 0.0 for t in group]], config)
    assert found == pytest.approx([1.0, -1.0, 4 / 3, -2 / 3, -2 / 3, 0.0])
    masks = [sample.mask for sample in to_samples(group, found, config)]
    assert masks[0] == (0, 1, 1, 0, 1, 1)
    assert masks[2] == (0, 0, 0, 0, 1, 1)
    assert masks[5] == (0, 0, 0, 0, 0, 0, 0, 1, 1)
