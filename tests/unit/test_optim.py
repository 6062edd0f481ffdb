"""The optimiser: what decays, what it is made with, and the learning rate of a step."""

import math

import pytest
import torch
from torch import nn

from retcon.train.optim import adamw, apply, learning_rate, rising_steps

pytestmark = pytest.mark.torch


def test_matrices_decay_and_norms_and_biases_do_not():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    model[0].bias.requires_grad_(False)
    optimizer = adamw(model, 0.1, weight_decay=0.5, betas=(0.8, 0.9))
    decaying, others = optimizer.param_groups
    assert [p is model[0].weight for p in decaying["params"]] == [True]
    assert [id(p) for p in others["params"]] == [id(model[1].weight), id(model[1].bias)]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert {(group["lr"], group["betas"]) for group in optimizer.param_groups} == {(0.1, (0.8, 0.9))}


def test_a_step_has_its_own_rate_cuts_the_gradient_and_drops_it():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=7.0)
    before = model.weight.item()
    model.weight.grad = torch.full_like(model.weight, 4.0)
    assert apply(model, optimizer, lr=0.5, max_grad_norm=2.0) == pytest.approx(4.0)
    assert before - model.weight.item() == pytest.approx(0.5 * 2.0, rel=1e-4)
    assert model.weight.grad is None


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
    assert [rising_steps(share, 20) for share in (0.0, 0.1, 1.0)] == [1, 2, 20]
