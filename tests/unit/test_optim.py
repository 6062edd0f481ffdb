"""The learning rate of a step, and the gradient that it is applied to."""

import math

import pytest
import torch

from retcon.core.errors import TrainingDiverged
from retcon.train.optim import learning_rate, step_optimizer, warmup_steps

pytestmark = pytest.mark.torch


def test_the_rate_goes_up_in_a_line_and_down_in_a_cosine():
    rates = [learning_rate(step, 10, peak=2.0, rising=2, schedule="cosine") for step in range(10)]
    assert rates[:3] == pytest.approx([1.0, 2.0, 2.0])
    assert rates[6] == pytest.approx(1 + math.cos(math.pi * 4 / 8))
    assert rates == [*rates[:2], *sorted(rates[2:], reverse=True)]
    assert learning_rate(0, 1, peak=2.0, rising=1, schedule="cosine") == 2.0


def test_the_rate_goes_down_in_a_line_or_stays():
    down = [learning_rate(step, 6, peak=2.0, rising=2, schedule="linear") for step in range(6)]
    assert down == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    assert {learning_rate(step, 6, peak=2.0, rising=0, schedule="constant") for step in range(6)} == {2.0}


def test_a_warm_up_has_a_share_of_all_steps_and_one_at_least():
    assert [warmup_steps(share, 20) for share in (0.0, 0.1, 1.0)] == [1, 2, 20]


def test_a_gradient_that_is_no_number_is_reported_for_a_batch_without_a_name():
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.full_like(model.weight, math.inf)
    with pytest.raises(TrainingDiverged, match=r"^a batch: the gradient norm is"):
        step_optimizer(model, torch.optim.SGD(model.parameters(), lr=1.0), lr=1.0, max_grad_norm=1.0)
