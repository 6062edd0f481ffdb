"""What a step's metrics say of spliced tokens."""

from dataclasses import replace

import pytest

from retcon.core.types import Sample
from retcon.train.algorithms.dapo import Dapo
from retcon.train.watch import splice_metrics


def sample(advantage: float, *, spliced: int, weights: tuple[float | None, ...] | None = None) -> Sample:
    """A prompt's token, a sampled one, and spliced ones, the last of which is not learnt."""
    count = 2 + spliced
    mask = (0, 1, *[1] * (spliced - 1), 0) if spliced else (0, 1)
    return Sample(
        tuple(range(count)), mask, (None, *[-1.0] * (count - 1)), (0, 0, *[1] * spliced), (advantage,) * count, weights
    )


def test_what_is_not_spliced_says_nothing():
    assert splice_metrics([sample(1.0, spliced=0)], Dapo()) == {
        "spliced_tokens": 0, "spliced_positive": None, "spliced_negative": None, "spliced_weight": None
    }  # fmt: skip


def test_shares_are_of_spliced_tokens_in_the_loss_mask():
    found = splice_metrics([sample(1.0, spliced=4), sample(-1.0, spliced=2), sample(0.0, spliced=5)], Dapo())
    assert found["spliced_tokens"] == 3 + 1 + 4
    assert found["spliced_positive"] == pytest.approx(3 / 8)
    assert found["spliced_negative"] == pytest.approx(1 / 8)
    assert found["spliced_weight"] == 1.0


def test_the_mean_weight_is_what_a_splice_weighs():
    weighed = sample(1.0, spliced=3, weights=(None, None, 2.0, 0.5, 9.0))
    assert splice_metrics([weighed], Dapo())["spliced_weight"] == pytest.approx(1.25)


def test_where_no_advantage_is_known_splices_are_pushed_nowhere():
    found = splice_metrics([replace(sample(1.0, spliced=4), advantages=None)], Dapo())
    assert (found["spliced_tokens"], found["spliced_positive"], found["spliced_negative"]) == (3, 0.0, 0.0)


def test_weights_that_were_cut_are_counted_where_there_are_weights():
    weighed = sample(1.0, spliced=5, weights=(None, None, 2.0, 0.5, 0.0, 2.0, 2.0))
    truncated = Dapo(splice_weight="truncated", splice_weight_cap=2.0)
    assert splice_metrics([weighed], truncated)["splice_weights_cut"] == 2, "the last one is not learnt"
    assert splice_metrics([weighed], Dapo(splice_weight="accept"))["splice_weights_cut"] == 1
    assert splice_metrics([sample(1.0, spliced=0)], truncated)["splice_weights_cut"] == 0
