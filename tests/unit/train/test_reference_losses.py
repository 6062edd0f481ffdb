"""Losses, their gradients and advantages equal TRL's and verl's (tests/reference/make_losses.py ran their code)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retcon.config.load import load_recipe
from retcon.config.schema import RLSection
from retcon.train.batch import Batch
from retcon.train.objective.advantage import dr_grpo, grpo, normalize_step, rloo
from retcon.train.objective.loss import Totals, average
from retcon.train.objective.old_logprobs import kl_terms

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/losses.json").read_text())
SETTINGS = REFERENCE["settings"]
PEERS = [
    name
    for name in REFERENCE["losses"][0]
    if name.startswith(("trl ", "verl ")) and name[-2:] not in ("k1", "k2", "k3")
]
ROUNDING = {"rel": 1e-7, "abs": 1e-8}  # verl adds 1e-8 to the count of a sequence's ids
TRL_EPSILON = 1e-4  # to the standard deviation; ours is verl's


def section(kind: str) -> RLSection:
    """The algorithm, with the reference's bounds."""
    low, high = SETTINGS["clips"][kind]
    own = {
        "dr_grpo": [f"rl.loss_tokens={SETTINGS['loss_tokens']}"],
        "dual_clip": [f"rl.dual_clip={SETTINGS['dual']}"],
    }.get(kind, [])
    algorithm = "dapo" if kind == "dual_clip" else kind
    return load_recipe(None, [f"rl.algorithm={algorithm}", f"rl.clip_low={low}", f"rl.clip_high={high}", *own]).rl


def tensors(row: int) -> tuple[torch.Tensor, Batch, torch.Tensor]:
    """The policy's log-probs, the batch, and the reference policy's log-probs."""
    given = REFERENCE["losses"][row]
    new, old, advantages, reference = (
        torch.tensor(given[name], dtype=torch.float64) for name in ("new", "old", "advantages", "reference")
    )
    mask = torch.tensor(given["mask"])
    return new.requires_grad_(), Batch(mask, mask, mask, old, advantages, None), reference


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("row", range(len(REFERENCE["losses"])))
def test_loss_and_gradient(row: int, name: str) -> None:
    kind, _, with_kl = name.partition(" ")[2].partition(" + ")
    rl, (new, batch, reference) = section(kind), tensors(row)
    totals = Totals.of(batch.mask)
    value = rl.loss(new, batch, totals).value
    if with_kl:
        terms = kl_terms(new, reference, "k3").masked_fill(~batch.mask, 0.0)
        value = value + SETTINGS["beta"] * average(terms, batch, totals, rl.aggregate)
    value.backward()
    wanted: dict[str, Any] = REFERENCE["losses"][row][name]
    assert value.item() == pytest.approx(wanted["loss"], **ROUNDING)
    gradient = torch.tensor(wanted["gradient"], dtype=torch.float64)
    assert new.grad is not None
    assert new.grad.numpy() == pytest.approx(gradient.numpy(), **ROUNDING)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators(estimator: str) -> None:
    for row, given in enumerate(REFERENCE["losses"]):
        new, _, reference = tensors(row)
        wanted = torch.tensor(given[f"verl {estimator}"], dtype=torch.float64)
        assert kl_terms(new, reference, estimator).detach().numpy() == pytest.approx(wanted.numpy(), rel=1e-7, abs=1e-7)


def test_the_batches_reach_both_clips() -> None:
    """A reference whose ratios all lie inside says nothing about clipping."""
    for given in REFERENCE["losses"]:
        ratios = (torch.tensor(given["new"]) - torch.tensor(given["old"])).exp()
        cut = torch.tensor(given["mask"]) & (torch.tensor(given["verl dapo"]["gradient"]) == 0)
        assert (cut & (ratios > 1.28)).any()
        assert (cut & (ratios < 0.8)).any()
        assert given["verl dual_clip"]["loss"] < given["verl dapo"]["loss"]
        assert (torch.tensor(given["verl gspo"]["gradient"]) == 0).all(-1).any()


def test_advantages() -> None:
    reference = REFERENCE["advantages"]
    for name, ours in (("grpo", grpo), ("dr_grpo", dr_grpo), ("rloo", rloo)):
        for rewards, wanted in zip(reference["rewards"], reference[f"verl {name}"], strict=True):
            assert ours(rewards) == pytest.approx(wanted, rel=1e-9)
    centred_groups = [dr_grpo(rewards) for rewards in reference["rewards"]]
    for found, wanted in zip(normalize_step(centred_groups), reference["verl reinforce_pp"], strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)
    scaled = [a for rewards in reference["rewards"] for a in grpo(rewards, epsilon=TRL_EPSILON)]
    assert sorted(scaled) == pytest.approx(reference["trl grpo"], rel=1e-6)
    centred = [a for group in centred_groups for a in group]
    assert sorted(centred) == pytest.approx(reference["trl dr_grpo"], rel=1e-6)
