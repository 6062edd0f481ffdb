"""A training step on a GPU learns what it learns on a CPU: the ways through the model, the losses, adapters."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import DPOSection, LoraSection, RLSection, SFTSection
from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.models.lora import Adapter
from retcon.models.placing import move_model
from retcon.train.algorithms.aepo import Aepo
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.algorithms.gspo import Gspo
from retcon.train.batch import collate
from retcon.train.datasets.preferences import Preference
from retcon.train.dpo import dpo_step
from retcon.train.kernels import forward
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.optim import adamw
from retcon.train.rollouts import EngineWeights
from retcon.train.sft import mean_loss, sft_step
from retcon.train.update import update

pytestmark = pytest.mark.torch
VOCABULARY = 31
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip
MODELS = ("qwen3", "llama", "gpt2")


def made(name: str) -> Any:
    torch.manual_seed(0)
    if name == "gpt2":
        # Without dropout, which draws from another generator on each device.
        dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
        return GPT2LMHeadModel(GPT2Config(**sizes, **dropout)).eval()
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)).eval()


def on(device: str, model: Any) -> Any:
    there = copy.deepcopy(model)
    move_model(there, device)
    return there


def group(rng: random.Random, prompt: int, lengths: tuple[int, ...]) -> list[Sample]:
    """Samples that begin with the same `prompt` ids; after the first, some of the own ids are not learnt."""
    first = tuple(rng.randrange(VOCABULARY) for _ in range(prompt))
    samples = []
    for n in lengths:
        ids = first + tuple(rng.randrange(VOCABULARY) for _ in range(n))
        mask = (0,) * prompt + (1,) + tuple(int(rng.random() < 0.7) for _ in range(n - 1))
        spliced = tuple(int(m and rng.random() < 0.3) for m in mask)
        advantage = rng.choice((-1, 1)) * rng.uniform(0.1, 1)
        samples.append(Sample(ids, mask, (None,) * len(ids), spliced, (advantage,) * len(ids)))
    return samples


def sampled(model: Any) -> list[Sample]:
    """With log-probs of the model's own, on a CPU."""
    rng = random.Random(0)
    groups = ((9, (12, 12, 12, 12)), (7, (3, 5, 20, 21, 22)), (9, (13, 11)), (4, (40,)), (30, (1, 2, 15)))
    samples = [one for prompt, lengths in groups for one in group(rng, prompt, lengths)]
    batch = collate(samples)
    with torch.no_grad():
        found = token_logprobs(model, batch.ids, batch.mask).tolist()
    return [
        replace(one, logprobs=tuple(p if m else None for p, m in zip(row, one.mask, strict=False)))
        for one, row in zip(samples, found, strict=True)
    ]


CONFIG = Dapo(max_grad_norm=1e9, lr=0.5, minibatches=2)
ROUNDED = Computing(micro_batch_tokens=256, dtype="bfloat16")


def updated(
    device: str, model: Any, samples: list[Sample], config: RLSection = CONFIG, computing: Computing | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, float | None]]:
    """What plain gradient descent adds to each weight, and the figures."""
    trained, before = on(device, model), model.state_dict()
    reference = on(device, model) if config.kl else None
    sgd = torch.optim.SGD(trained.parameters())
    computing = computing or Computing(micro_batch_tokens=256)
    told = update(trained, sgd, samples, config, seed=0, step=1, computing=computing, reference=reference)
    assert all(p.device.type == torch.device(device).type for p in trained.parameters())
    return {k: v.cpu() - before[k] for k, v in trained.state_dict().items()}, told


def assert_alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    largest = max(v.abs().max().item() for v in one.values())
    assert largest > 1e-3
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-4 * largest, rtol=1e-3)


FREE = ("padding", "shared", "mismatch_mean", "mismatch_max", "mismatch_kl", "kl")
"""Figures of how it was computed, and of rounding."""


def assert_told_alike(here: dict[str, float | None], there: dict[str, float | None], rel: float = 1e-3) -> None:
    assert {k for k, v in here.items() if v is None} == {k for k, v in there.items() if v is None}
    one, other = ({k: v for k, v in told.items() if v is not None and k not in FREE} for told in (here, there))
    assert one == pytest.approx(other, rel=rel, abs=1e-5)


WAYS = {
    "together": Computing(micro_batch_tokens=10**6, share_prompts=False),
    "shared": Computing(micro_batch_tokens=10**6),
    "shared, cut": Computing(micro_batch_tokens=64),
    "checkpointed": Computing(micro_batch_tokens=64, checkpointing=True),
    "sliced": Computing(micro_batch_tokens=64, logits_chunk=100),
    "each alone": Computing(micro_batch_tokens=1, share_prompts=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_every_way_learns_what_a_cpu_learns(name: str, way: str, device: str) -> None:
    model = made(name)
    samples = sampled(model)
    (expected, here), (found, there) = (
        updated("cpu", model, samples),
        updated(device, model, samples, computing=WAYS[way]),
    )
    assert_alike(expected, found)
    assert_told_alike(here, there)
    assert (there["mismatch_max"] or 0.0) < 1e-3


def test_samples_that_are_padded_are_learnt_alike(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("qwen3")
    samples = sampled(model)
    packed, _ = updated(device, model, samples)
    monkeypatch.setattr(forward, "why_not_packed", lambda *_: "asked for")
    padded, told = updated(device, model, samples)
    assert_alike(packed, padded)
    assert (told["padding"] or 0.0) > 0


def test_what_branches_learn_twice_is_learnt_alike(device: str) -> None:
    """Where its advantage comes from is looked up on the device."""
    model, config = made("qwen3"), CONFIG.model_copy(update={"minibatches": 1})
    twice = [replace(one, tree="t") for one in sampled(model)[:4] for _ in range(2)]
    assert_alike(updated("cpu", model, twice, config)[0], updated(device, model, twice, config)[0])


@pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")
def test_prompts_of_unlike_length_are_padded_together(device: str) -> None:
    rng, model, config = random.Random(0), made("qwen3"), CONFIG.model_copy(update={"minibatches": 1})
    both = [one for prompt in (9, 8) for one in group(rng, prompt, (12, 12))]
    scored = [replace(one, logprobs=tuple(-3.4 if m else None for m in one.mask)) for one in both]
    assert_alike(updated("cpu", model, scored, config)[0], updated(device, model, scored, config)[0])


CONFIGS: dict[str, RLSection] = {
    "grpo, to a reference": Grpo(max_grad_norm=1e9, lr=0.5, kl=0.1),
    "entropy bonus": CONFIG.model_copy(update={"entropy_coefficient": 0.05}),
    "imitation": CONFIG.model_copy(update={"imitate_spliced": 0.5}),
    "old log-probs anew": CONFIG.model_copy(update={"old_logprobs": "recompute", "correction": "token_truncate"}),
    "by sequence": Gspo(max_grad_norm=1e9, lr=0.5),
    "by entropy": Aepo(max_grad_norm=1e9, lr=0.5),
    "clipped": CONFIG.model_copy(update={"max_grad_norm": 0.01, "epochs": 2}),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_every_loss_is_that_of_a_cpu(what: str, device: str) -> None:
    model, config = made("qwen3"), CONFIGS[what]
    samples = sampled(model)
    (_, here), (_, there) = updated("cpu", model, samples, config), updated(device, model, samples, config)
    assert_told_alike(here, there)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_the_gradient_points_where_it_does_in_float32(name: str, checkpointing: bool, device: str) -> None:
    model = made(name)
    samples = sampled(model)
    rounding = replace(ROUNDED, checkpointing=checkpointing)
    (expected, here), (found, there) = (
        updated("cpu", model, samples),
        updated(device, model, samples, computing=rounding),
    )
    one, other = (torch.cat([v.float().flatten() for v in moved.values()]) for moved in (expected, found))
    assert torch.cosine_similarity(one, other, dim=0) > 0.99
    assert other.dtype == torch.float32
    assert there["grad_norm"] == pytest.approx(here["grad_norm"], rel=0.05)
    assert 0 < (there["mismatch_mean"] or 0.0) < 0.05


def test_adamw_takes_the_steps_of_a_cpu(device: str) -> None:
    model = made("qwen3")
    samples, ended = sampled(model), []
    for where in ("cpu", device):
        trained = on(where, model)
        optimizer = adamw(trained, 1e-3, weight_decay=0.1)
        config = CONFIG.model_copy(update={"lr": 1e-3, "max_staleness": 1})
        told = [update(trained, optimizer, samples, config, seed=0, step=step) for step in range(1, 4)]
        ended.append((told[-1], trained.state_dict()))
        assert {v.device.type for s in optimizer.state.values() for v in s.values()} == {torch.device(where).type}
    (here, of_here), (there, of_there) = ended
    assert there["grad_norm"] == pytest.approx(here["grad_norm"], rel=1e-2)
    for name, value in of_here.items():
        # A moment that is nearly nothing may have either sign: each of six steps then differs by twice the rate.
        assert (of_there[name].cpu() - value).abs().max() <= 12e-3
        assert (of_there[name].cpu() - value).abs().mean() < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_supervised_step_is_that_of_a_cpu(name: str, device: str) -> None:
    model = made(name)
    samples, config = sampled(model), SFTSection(lr=0.1, warmup=0.0, steps=2, max_grad_norm=1e9)
    ended = []
    for where in ("cpu", device):
        trained = on(where, model)
        sgd = torch.optim.SGD(trained.parameters())
        told = sft_step(trained, sgd, samples, config, 0, computing=Computing(micro_batch_tokens=128))
        loss = mean_loss(trained, samples, Computing())
        ended.append((told, loss, {k: v.cpu() - model.state_dict()[k] for k, v in trained.state_dict().items()}))
    assert_alike(ended[0][2], ended[1][2])
    assert ended[1][1] == pytest.approx(ended[0][1], rel=1e-4)
    assert ended[1][0]["loss"] == pytest.approx(ended[0][0]["loss"], rel=1e-4)


def test_a_step_on_preferences_is_that_of_a_cpu(device: str) -> None:
    model = made("qwen3")
    samples = sampled(model)
    pairs = [Preference(one, other) for one, other in zip(samples[0:4:2], samples[1:4:2], strict=True)]
    ended = []
    for where in ("cpu", device):
        trained = on(where, model)
        sgd = torch.optim.SGD(trained.parameters())
        known = torch.zeros(len(pairs), 2)
        told = dpo_step(trained, sgd, pairs, known, DPOSection(lr=0.1, steps=2), step=0, computing=Computing())
        ended.append({k: v for k, v in told.items() if not k.endswith("seconds")})
    assert ended[1] == pytest.approx(ended[0], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_trained_and_merged_where_the_model_is(name: str, dtype: torch.dtype, device: str) -> None:
    model = made(name)
    samples = sampled(model)
    adapter = Adapter(model, LoraSection(rank=3), seed=0)
    move_model(model, device)
    weights = EngineWeights(model, dtype, adapter)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    update(model, torch.optim.SGD(model.parameters()), samples, CONFIG, seed=0, step=1, computing=Computing())
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed
    assert all("lora_" in k for k in changed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                parameter.add_(torch.ones_like(parameter), alpha=0.05)
    weights.sync()
    assert {p.device.type for p in weights.model.parameters()} == {torch.device(device).type}
    assert weights.model.dtype == dtype
    ids = torch.arange(24, device=device).view(2, 12)
    with torch.inference_mode():
        near = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.3}[dtype]
        torch.testing.assert_close(weights.model(ids).logits.float(), model(ids).logits, atol=near, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_in_half_precision_follows_in_place(name: str, dtype: torch.dtype, device: str) -> None:
    model = on(device, made(name))
    weights = EngineWeights(model, dtype)
    where = {n: p.data_ptr() for n, p in weights.model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    weights.sync()
    assert {n: p.data_ptr() for n, p in weights.model.named_parameters()} == where
    for (_, one), (_, other) in zip(model.named_parameters(), weights.model.named_parameters(), strict=True):
        assert torch.equal(one.to(dtype), other)
