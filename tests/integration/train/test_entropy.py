"""The entropy bonus: exact entropies, exact gradients, and what they do in an update."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.batch import collate
from retcon.train.kernels.forward import forwards
from retcon.train.objective.credit import weigh_by_entropy
from retcon.train.update import minibatch_update

pytestmark = pytest.mark.torch
VOCABULARY = 31


def qwen() -> PreTrainedModel:
    """Its samples are packed."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=1,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=64, tie_word_embeddings=True,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    """Its positions are learnt; its samples are packed all the same, or padded."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, attn_pdrop=0, resid_pdrop=0)
    )


@pytest.fixture(params=[qwen, gpt2])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    made: PreTrainedModel = request.param()
    return made.eval()


def sample(length: int, learnt: int, advantage: float = 0.0, first: int = 1) -> Sample:
    ids = tuple((first + 7 * i) % VOCABULARY for i in range(length))
    mask = (0,) * (length - learnt) + (1,) * learnt
    return Sample(ids, mask, tuple(-3.4 if m else None for m in mask), (0,) * length, (advantage,) * length)


SAMPLES = [sample(9, 4), sample(13, 6, first=3), sample(7, 2, first=5)]


def plain(model: PreTrainedModel, samples: list[Sample]) -> list[Tensor]:
    """The entropies before each sample's learnt tokens, by autograd over all logits, a sample at a time."""
    found = []
    for one in samples:
        batch = collate([one])
        probabilities = model(input_ids=batch.ids).logits[0, :-1].softmax(-1)
        entropies = -(probabilities * probabilities.log()).sum(-1)
        found.append(entropies[batch.mask[0, 1:]])
    return found


def gradients(model: PreTrainedModel, backward: Callable[[PreTrainedModel], None]) -> dict[str, Tensor]:
    trained = copy.deepcopy(model)
    backward(trained)
    return {name: p.grad for name, p in trained.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk", [1, 3 * VOCABULARY, 1 << 24], ids=["a token at a time", "three", "all"])
def test_entropies_and_their_gradient_are_those_of_autograd_over_all_logits(model: PreTrainedModel, chunk: int) -> None:
    expected = {id(one): found.detach() for one, found in zip(SAMPLES, plain(model, SAMPLES), strict=True)}

    def ours(trained: PreTrainedModel) -> None:
        with forwards(trained, SAMPLES, Computing(logits_chunk=chunk), entropies=True) as parts:
            for part in parts:
                assert part.entropies is not None
                for one, row, mask in zip(part.samples, part.entropies, part.batch.mask, strict=True):
                    torch.testing.assert_close(row[mask], expected[id(one)], atol=1e-5, rtol=1e-5)
                    assert not row[~mask].any()
                part.entropies.square().sum().backward()  # no two tokens weigh alike

    def theirs(trained: PreTrainedModel) -> None:
        torch.cat(plain(trained, SAMPLES)).square().sum().backward()

    one, other = gradients(model, ours), gradients(model, theirs)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-5, rtol=1e-4)


def test_weights_by_entropy_multiply_those_that_a_sample_has(model: PreTrainedModel) -> None:
    plain, other = sample(9, 4, 1.0), sample(13, 6, -1.0, first=3)
    weighed = replace(plain, weights=(None,) * 6 + (0.5, 2.0, 1.0))
    factors, found = (weigh_by_entropy(model, [one, other], Computing(), 0.5)[0].weights for one in (plain, weighed))
    assert len(set(factors[-4:])) == 4
    assert found == (None,) * 5 + (factors[5], 0.5 * factors[6], 2.0 * factors[7], factors[8])


@pytest.mark.parametrize("config", [Dapo(), Grpo()], ids=["over tokens", "over sequences"])
def test_the_bonus_is_averaged_as_the_loss_and_raises_the_entropy(model: PreTrainedModel, config: Dapo | Grpo) -> None:
    """Rollouts without an advantage, so that there is nothing but the bonus; in one micro-batch or in several."""
    config = config.model_copy(update={"entropy_coefficient": 0.5, "lr": 0.05, "max_grad_norm": 1e9})
    before = plain(model, SAMPLES)
    by_token = torch.cat(before).mean().item()
    mean = by_token if isinstance(config, Dapo) else torch.stack([e.mean() for e in before]).mean().item()
    moved = []
    for computing in (Computing(), Computing(micro_batch_tokens=1)):
        trained = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained.parameters())
        metrics = minibatch_update(trained, optimizer, SAMPLES, config, computing=computing)
        assert metrics["loss"] == pytest.approx(-0.5 * mean, rel=1e-5)
        assert metrics["entropy"] == pytest.approx(by_token, rel=1e-5)
        assert torch.cat(plain(trained, SAMPLES)).mean() > by_token
        moved.append(trained.state_dict())
    for name, value in moved[0].items():
        torch.testing.assert_close(value, moved[1][name], atol=1e-6, rtol=1e-4)


def test_without_it_nothing_is_measured_and_flat_groups_cost_nothing(model: PreTrainedModel) -> None:
    trained = copy.deepcopy(model)
    metrics = minibatch_update(trained, torch.optim.SGD(trained.parameters()), SAMPLES, Dapo())
    assert metrics == dict.fromkeys(metrics, 0.0)
    with forwards(model, [replace(SAMPLES[0])], Computing()) as parts:
        assert [part.entropies for part in parts] == [None]
