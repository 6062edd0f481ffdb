"""What an update adds to the policy loss, written plainly beside it: imitation, the penalty to a reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import RLSection
from retcon.core.types import Sample, Segment, Trajectory, Turn
from retcon.models.devices import Computing
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.batch import collate
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.objective.credit import weigh_by_entropy
from retcon.train.objective.loss import Totals, average
from retcon.train.update import to_samples, update

pytestmark = pytest.mark.torch


PLAIN = {"max_grad_norm": 1e9, "lr": 0.1, "minibatches": 1}


def made(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
                    num_key_value_heads=1, head_dim=32, tie_word_embeddings=True)
    ).eval()  # fmt: skip


def logprobs_of(model: Qwen3ForCausalLM, samples: list[Sample]) -> Tensor:
    batch = collate(samples)
    return token_logprobs(model, batch.ids, batch.mask)


def sampled(model: Qwen3ForCausalLM, *rows: tuple[int, int, float, int]) -> list[Sample]:
    """(length, learnt, advantage, spliced ids at the end), with the log-probs that the model gives."""
    found = []
    for n, (length, learnt, advantage, spliced) in enumerate(rows):
        ids = tuple((1 + n + 7 * i) % 31 for i in range(length))
        mask, kinds = ((0,) * (length - count) + (1,) * count for count in (learnt, spliced))
        found.append(Sample(ids, mask, (None,) * length, kinds, (advantage,) * length))
    with torch.no_grad():
        known = logprobs_of(model, found).tolist()
    rows_of = zip(found, known, strict=True)
    return [replace(s, logprobs=tuple(p if m else None for p, m in zip(k, s.mask, strict=False))) for s, k in rows_of]


def assert_a_step_down(
    model: Qwen3ForCausalLM,
    samples: list[Sample],
    config: RLSection,
    value: Callable[[Tensor], Tensor],
    reference: Qwen3ForCausalLM | None = None,
) -> dict[str, float | None]:
    """Of plain descent on `value`, a function of the samples' log-probs, (B, T). Returns the metrics."""
    trained, plain = copy.deepcopy(model), copy.deepcopy(model)
    sgd = torch.optim.SGD(trained.parameters())
    found = update(trained, sgd, samples, config, seed=0, step=1, reference=reference)
    value(logprobs_of(plain, samples)).backward()
    assert max(p.grad.abs().max() for p in plain.parameters() if p.grad is not None) > 1e-3
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.detach() - config.lr * parameter.grad
        torch.testing.assert_close(trained.get_parameter(name).detach(), wanted, atol=1e-6, rtol=1e-4)
    return found


@pytest.mark.parametrize("algorithm", [Dapo, Grpo])
def test_imitation_makes_splices_of_right_rollouts_likelier_and_is_averaged_as_the_loss(
    algorithm: type[RLSection],
) -> None:
    """Their policy loss makes way for it; that of the others stays. Ratios are 1."""
    model = made(0)
    samples = sampled(model, (9, 5, 2.0, 3), (12, 6, -1.0, 0), (7, 2, -0.5, 1))
    config = algorithm(imitate_spliced=0.25, **PLAIN)
    batch = collate(samples)
    weights = torch.where(batch.spliced, 0.25 * batch.advantages.clamp(min=0), batch.advantages)

    def value(logprobs: Tensor) -> Tensor:
        return average(-weights * logprobs, batch, Totals.of(batch.mask), config.aggregate)

    found = assert_a_step_down(model, samples, config, value)
    assert found["imitation"] is not None
    with torch.no_grad():
        spliced = (-weights * logprobs_of(model, samples)).masked_fill(~(batch.spliced & batch.mask), 0.0)
        imitated = average(spliced, batch, Totals.of(batch.mask), config.aggregate).item()
        policy = torch.where(batch.spliced | ~batch.mask, 0.0, -batch.advantages)
        left = average(policy, batch, Totals.of(batch.mask), config.aggregate).item()
    assert found["imitation"] == pytest.approx(imitated, rel=1e-4)
    assert found["loss"] == pytest.approx(left + imitated, rel=1e-4)


@pytest.mark.parametrize("algorithm", [Dapo, Grpo])
def test_the_penalty_draws_towards_the_reference_and_is_averaged_as_the_loss(algorithm: type[RLSection]) -> None:
    """A rollout without an advantage is drawn there, too. k2: half the square of the log-ratio."""
    model, reference = made(0), made(1)
    samples = sampled(model, (9, 4, 2.0, 0), (12, 6, -1.0, 0), (7, 2, 0.0, 0))
    config = algorithm(kl=0.5, kl_estimator="k2", **PLAIN)
    batch = collate(samples)
    with torch.no_grad():
        theirs = logprobs_of(reference, samples)

    def penalty(logprobs: Tensor) -> Tensor:
        terms = (logprobs - theirs).square() / 2
        return average(terms, batch, Totals.of(batch.mask), config.aggregate)

    def value(logprobs: Tensor) -> Tensor:
        policy = average(-batch.advantages * logprobs, batch, Totals.of(batch.mask), config.aggregate)
        return policy + 0.5 * penalty(logprobs)

    found = assert_a_step_down(model, samples, config, value, reference)
    with torch.no_grad():
        assert found["kl_reference"] == pytest.approx(penalty(logprobs_of(model, samples)).item(), rel=1e-4)


def test_entropies_are_compared_among_tokens_of_rollouts_that_are_learnt_from() -> None:
    model = made(0)
    one, flat, void = sampled(model, (9, 4, 1.0, 0), (12, 6, 0.0, 0), (7, 0, 1.0, 0))
    (alone,) = weigh_by_entropy(model, [one], Computing(), 0.5)
    among = weigh_by_entropy(model, [flat, one, void], Computing(), 0.5)
    assert among[0] is flat
    assert among[2] is void
    assert alone.weights is not None
    assert among[1].weights is not None
    assert among[1].weights[5:] == pytest.approx(alone.weights[5:], rel=1e-5)


def test_rollouts_that_happen_to_begin_alike_share_no_advantage() -> None:
    """Where none branched off another."""
    prompt, ids = (Segment("prompt", "p", (1,)),), ((2, 3), (2, 4))
    turns = [(Turn((Segment("sampled", "ab", written, (-1.0, -1.0)),)),) for written in ids]
    group = [Trajectory(f"t/{n}", "t", prompt, one, reward=0.0) for n, one in enumerate(turns)]
    samples = to_samples(group, [1.0, -1.0], Dapo(shared_advantage="mean"))
    assert [one.advantages for one in samples] == [(1.0,) * 3, (-1.0,) * 3]


def test_where_there_is_no_reference_a_policy_is_at_no_distance_from_it() -> None:
    """0 would be a curve of one that stays where it began, under the name that TRL has for that."""
    model = made(0)
    samples, sgd = sampled(model, (9, 4, 1.0, 0)), torch.optim.SGD(model.parameters())
    assert update(model, sgd, samples, Dapo(**PLAIN), seed=0, step=1)["kl_reference"] is None


# A step of the optimiser: what it trains, what decays, and what it tells.
