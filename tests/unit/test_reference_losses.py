"""Losses, their gradients and advantages equal TRL's and verl's (tests/reference/make_losses.py ran their code)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retcon.train.objective.advantage import dr_grpo, grpo
from retcon.train.objective.loss import Aggregate, policy_loss

REFERENCE = json.loads((Path(__file__).parent.parent / "reference/losses.json").read_text())
KINDS: dict[str, tuple[float, Aggregate]] = {"grpo": (0.2, "sequence"), "dapo": (0.28, "token")}
ROUNDING = {"rel": 1e-7, "abs": 1e-8}  # verl adds 1e-8 to the count of a sequence's ids
TRL_EPSILON = 1e-4  # to the standard deviation; ours is verl's


@pytest.mark.parametrize("peer", ["trl", "verl"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", range(len(REFERENCE["losses"])))
def test_loss_and_gradient(row: int, kind: str, peer: str) -> None:
    given: dict[str, Any] = REFERENCE["losses"][row]
    new, old, advantages = (torch.tensor(given[name], dtype=torch.float64) for name in ("new", "old", "advantages"))
    new.requires_grad_()
    clip_high, aggregate = KINDS[kind]
    loss = policy_loss(
        new, old, advantages, torch.tensor(given["mask"]), clip_low=0.2, clip_high=clip_high, aggregate=aggregate
    ).value
    loss.backward()
    wanted = given[f"{peer} {kind}"]
    assert loss.item() == pytest.approx(wanted["loss"], **ROUNDING)
    torch.testing.assert_close(
        new.grad, torch.tensor(wanted["gradient"], dtype=torch.float64), rtol=ROUNDING["rel"], atol=ROUNDING["abs"]
    )


def test_the_batches_reach_both_clips() -> None:
    """A reference whose ratios all lie inside says nothing about clipping."""
    for given in REFERENCE["losses"]:
        ratios = (torch.tensor(given["new"]) - torch.tensor(given["old"])).exp()
        cut = torch.tensor(given["mask"]) & (torch.tensor(given["verl dapo"]["gradient"]) == 0)
        assert (cut & (ratios > 1.28)).any()
        assert (cut & (ratios < 0.8)).any()


def test_advantages() -> None:
    reference = REFERENCE["advantages"]
    for name, ours in (("grpo", grpo), ("dr_grpo", dr_grpo)):
        for rewards, wanted in zip(reference["rewards"], reference[f"verl {name}"], strict=True):
            assert ours(rewards) == pytest.approx(wanted, rel=1e-9)
    scaled = [a for rewards in reference["rewards"] for a in grpo(rewards, epsilon=TRL_EPSILON)]
    assert sorted(scaled) == pytest.approx(reference["trl grpo"], rel=1e-6)
    centred = [a for rewards in reference["rewards"] for a in dr_grpo(rewards)]
    assert sorted(centred) == pytest.approx(reference["trl dr_grpo"], rel=1e-6)
