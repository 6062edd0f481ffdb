"""A step of the optimiser: what it trains, what decays, and what it tells."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.core.errors import TrainingDiverged
from retcon.train.optim import adamw, apply

pytestmark = pytest.mark.torch


def test_all_that_has_a_gradient_is_trained_and_matrices_alone_decay() -> None:
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), frozen)
    matrices, others = adamw(model, 0.1, weight_decay=0.3, betas=(0.8, 0.9)).param_groups
    assert [tuple(p.shape) for p in matrices["params"]] == [(2, 3)]
    assert [p.ndim for p in others["params"]] == [1, 1, 1], "a bias, and the weight and the bias of a norm"
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.3, 0.0)


def layer() -> tuple[Any, torch.optim.Optimizer]:
    """Of weight (1, 1) and gradient (3, 4), and an optimiser of another rate."""
    made = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(made.weight)
    made.weight.grad = torch.tensor([[3.0, 4.0]])
    return made, torch.optim.SGD(made.parameters(), lr=9.0)


def test_a_step_goes_down_the_clipped_gradient_drops_it_and_tells_its_norm_unclipped() -> None:
    model, sgd = layer()
    assert apply(model, sgd, lr=0.5, max_grad_norm=1.0) == pytest.approx(5.0)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[1 - 0.5 * 0.6, 1 - 0.5 * 0.8]]))
    assert model.weight.grad is None, "nor does its memory stand beside the rollouts that follow"


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_no_number_is_told_with_its_batch_before_weights_move(bad: float) -> None:
    model, sgd = layer()
    model.weight.grad[0, 1] = bad
    with pytest.raises(TrainingDiverged, match=rf"^step 3: the gradient norm is {bad}$"):
        apply(model, sgd, lr=0.5, max_grad_norm=1.0, batch="step 3")
    assert model.weight.tolist() == [[1.0, 1.0]]
