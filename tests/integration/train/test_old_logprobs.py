"""The log-probs that a step starts from, and how far two ways of computing them are apart."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning
from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.train.kernels.logprobs import learnt_logprobs
from retcon.train.objective.old_logprobs import LARGE, Mismatch, recompute
from retcon.train.update import update

pytestmark = pytest.mark.torch


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
                    num_key_value_heads=1, head_dim=32)
    ).eval()  # fmt: skip


def samples(model: Qwen3ForCausalLM, off: float = 0.0) -> list[Sample]:
    """Two with an advantage and one without, their log-probs `off` by as much."""
    found = []
    for length, advantage in ((9, 1.0), (13, -1.0), (7, 0.0)):
        ids = tuple((3 + 7 * i) % 31 for i in range(length))
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        known = [None] * 3 + [rows[i - 1, ids[i]].item() + off for i in range(3, length)]
        mask = (0,) * 3 + (1,) * (length - 3)
        found.append(Sample(ids, mask, tuple(known), (0,) * length, (advantage,) * length))
    return found


def stepped(
    model: Qwen3ForCausalLM,
    given: list[Sample],
    temperature: float = 1.0,
    reference: Qwen3ForCausalLM | None = None,
    **section: object,
) -> dict[str, float | None]:
    config = Recipe.model_validate({"rl": {"lr": 0.1, **section}}).rl
    computing = Computing(temperature=temperature)
    optimizer = torch.optim.SGD(model.parameters())
    return update(model, optimizer, given, config, seed=0, step=1, computing=computing, reference=reference)


def test_the_figures_are_of_what_is_learnt() -> None:
    found = Mismatch()
    trainer, engine = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -1.75, 0.0]])
    found.add(trainer, engine, torch.tensor([[True, True, False]]))
    found.add(trainer, trainer, torch.tensor([[True, True, False]]))
    with pytest.warns(ComputeWarning, match="rl.old_logprobs=recompute"):
        metrics = found.metrics()
    kl = (math.expm1(0.5) - 0.5 + math.expm1(-0.25) + 0.25) / 4
    assert metrics == pytest.approx({"mismatch_mean": 0.75 / 4, "mismatch_max": 0.5, "mismatch_kl": kl})


def test_recomputed_log_probs_are_the_trainers(model: Qwen3ForCausalLM) -> None:
    right, wrong = samples(model), samples(model, off=-LARGE / 2)
    mismatch = Mismatch()
    found = recompute(model, wrong, mismatch, Computing())
    figures = mismatch.metrics()
    assert figures["mismatch_mean"] == pytest.approx(LARGE / 2, rel=1e-3)
    above = math.expm1(LARGE / 2) - LARGE / 2  # of the trainer's, which are above the engine's
    assert figures["mismatch_kl"] == pytest.approx(above, abs=2e-7)
    for n in (0, 1):
        assert found[n].logprobs[:3] == (None,) * 3
        assert found[n].logprobs[3:] == pytest.approx(right[n].logprobs[3:], abs=1e-5)
    assert found[2] is wrong[2], "what has no advantage is not computed"


def test_what_is_recomputed_is_weighed_by_how_much_likelier_the_trainer_finds_it(model: Qwen3ForCausalLM) -> None:
    plain = samples(model, off=-0.5)[0]
    given = [plain, replace(plain, weights=(3.0,) * len(plain.ids))]
    found = recompute(model, given, Mismatch(), Computing(), weighing=("token_truncate", 9.0))
    for one, had in zip(found, (1.0, 3.0), strict=True):
        assert one.weights is not None
        assert one.weights[3:] == pytest.approx((had * math.exp(0.5),) * (len(plain.ids) - 3), rel=1e-4)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_tokens_whose_weight_was_cut_are_counted(mode: str, model: Qwen3ForCausalLM) -> None:
    given = samples(model, off=-0.5)[:2]
    for cap, share in ((1.5, 1), (1e9, 0)):
        mismatch = Mismatch()
        recompute(model, given, mismatch, Computing(), weighing=(mode, cap))
        assert mismatch.cut == share * sum(sum(sample.mask) for sample in given)


def test_the_ratio_starts_at_one_only_where_they_are_recomputed(model: Qwen3ForCausalLM) -> None:
    off = samples(model, off=LARGE / 2)
    taken, recomputed = (
        stepped(model, off, minibatches=1, lr=1e-9, old_logprobs=kind) for kind in ("engine", "recompute")
    )
    assert taken["kl"] == pytest.approx((LARGE / 2) ** 2 / 2, rel=0.05)
    assert recomputed["kl"] < 1e-8
    assert (
        taken["mismatch_mean"]
        == pytest.approx(recomputed["mismatch_mean"], rel=1e-3)
        == pytest.approx(LARGE / 2, rel=1e-3)
    )


def test_the_policy_that_is_trained_is_of_the_temperature_that_was_sampled_at(model: Qwen3ForCausalLM) -> None:
    given = samples(model)[:2]
    by_hand = copy.deepcopy(model)
    terms = []
    for one in given:
        assert one.advantages is not None
        rows = (by_hand(torch.tensor([one.ids])).logits[0, :-1] / 0.6).log_softmax(-1)
        chosen = rows.gather(1, torch.tensor(one.ids[1:])[:, None])[2:, 0]
        terms.append(chosen * one.advantages[0])
    (-torch.cat(terms).mean()).backward()  # of a ratio of 1
    wanted = by_hand.lm_head.weight - 0.1 * by_hand.lm_head.weight.grad
    metrics = stepped(model, given, temperature=0.6, minibatches=1, max_grad_norm=1e9)
    torch.testing.assert_close(model.lm_head.weight, wanted, atol=1e-6, rtol=1e-4)
    assert metrics["kl"] < 1e-8, "the old log-probs are of that temperature too"
    assert metrics["clip_fraction"] == 0
    assert metrics["mismatch_mean"] is None, "what the engine told is of another temperature"


@pytest.mark.parametrize("head", [nn.Linear(8, 29), nn.Sequential(nn.Linear(8, 29))])
@pytest.mark.parametrize("chunk", [64, 10_000])
def test_log_probs_and_entropies_of_a_temperature(head: nn.Module, chunk: int) -> None:
    torch.manual_seed(0)
    hidden, targets = torch.randn(11, 8, requires_grad=True), torch.arange(11) * 2
    rows = (head(hidden) / 0.6).log_softmax(-1)
    wanted = rows.gather(1, targets[:, None])[:, 0]
    gradients = torch.autograd.grad(wanted.sum(), [hidden, *head.parameters()], retain_graph=True)
    found = learnt_logprobs(hidden, head, targets, chunk, temperature=0.6)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), [hidden, *head.parameters()]), gradients)
