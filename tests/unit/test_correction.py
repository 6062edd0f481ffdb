"""Weights for tokens that the engine and the trainer score differently, worked out by hand."""

import math

import pytest
import torch

from retcon.train.objective.old_logprobs import importance_weights

pytestmark = pytest.mark.torch
TRAINER = torch.tensor([[2.0, 3.0, 0.5], [0.5, 0.5, 9.0]]).log()  # ratios: the engine finds each as likely as 1
MASK = torch.tensor([[True, True, True], [True, True, False]])


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token_truncate", [[2.0, 2.5, 0.5], [0.5, 0.5, 1.0]]),
        ("token_mask", [[2.0, 0.0, 0.5], [0.5, 0.5, 1.0]]),
        ("sequence_truncate", [[2.5] * 3, [0.25, 0.25, 1.0]]),
        ("sequence_mask", [[0.0] * 3, [0.25, 0.25, 1.0]]),
    ],
)
def test_each_mode(mode: str, weights: list[list[float]]) -> None:
    found = importance_weights(TRAINER, torch.zeros(2, 3), MASK, mode=mode, cap=2.5)
    assert found.tolist() == [pytest.approx(row) for row in weights]


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("cap", [1.0, 1.5])
def test_where_they_agree_every_weight_is_one(mode: str, cap: float) -> None:
    found = importance_weights(TRAINER, TRAINER, MASK, mode=mode, cap=cap)
    assert torch.equal(found, torch.ones(2, 3))


def test_weights_are_finite_however_far_the_two_are() -> None:
    far = torch.full((1, 2), 500.0)
    for mode in ("token_truncate", "sequence_mask"):
        found = importance_weights(far, -far, torch.ones(1, 2, dtype=torch.bool), mode=mode, cap=math.inf)
        assert found.isfinite().all()
