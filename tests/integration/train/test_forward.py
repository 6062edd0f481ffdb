"""The ways through the model: packed, sharing prompts, checkpointed, in slices of the vocabulary: one gradient."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.train.algorithms.dapo import Dapo
from retcon.train.algorithms.grpo import Grpo
from retcon.train.kernels.forward import forwards, why_not_packed
from retcon.train.update import minibatch_update

pytestmark = pytest.mark.torch

SIZES = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip


def made(name):
    torch.manual_seed(0)
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=32, n_layer=2, n_head=2, n_positions=128)).eval()
    if name == "stablelm":
        return StableLmForCausalLM(StableLmConfig(**SIZES, attn_implementation="sdpa")).eval()
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)).eval()


@pytest.fixture(scope="module")
def qwen():
    return made("qwen")


def group(rng, prompt, lengths, learnt=None):
    """Samples that begin with the same `prompt` ids; after the first, some of the own ids are not learnt."""
    first = tuple(rng.randrange(31) for _ in range(prompt))
    samples = []
    for n in lengths:
        own = tuple(rng.randrange(31) for _ in range(n))
        mask = (0,) * prompt + (1,) + tuple(int(rng.random() < 0.7) for _ in range(n - 1))
        logprobs = tuple(-3.4 + 0.1 * rng.random() if m else None for m in mask)
        spliced = tuple(int(m and rng.random() < 0.3) for m in mask)
        weights = tuple(rng.uniform(0.5, 2) if s else None for s in spliced)
        advantage = rng.choice((-1, 1)) * rng.uniform(0.1, 1)
        samples.append(Sample(first + own, mask, logprobs, spliced, (advantage,) * len(mask), weights))
    return samples


@pytest.fixture(scope="module")
def samples():
    rng = random.Random(0)
    groups = [(9, (12, 12, 12, 12)), (7, (3, 5, 20, 21, 22)), (9, (13, 11)), (4, (40,)), (30, (1, 2, 15))]
    return [s for prompt, lengths in groups for s in group(rng, prompt, lengths)]


CONFIG = Dapo(max_grad_norm=1e9, lr=1.0)


def gradient(model, samples, computing, config=CONFIG, dtype=torch.float64):
    """The gradient of an update, as what plain descent at a rate of 1 subtracts from each weight; and its metrics."""
    trained = copy.deepcopy(model).to(dtype)
    before = {k: v.clone() for k, v in trained.state_dict().items()}
    metrics = minibatch_update(trained, torch.optim.SGD(trained.parameters()), samples, config, computing=computing)
    return {k: before[k] - v for k, v in trained.state_dict().items()}, metrics


def assert_alike(one, other, **tolerance):
    assert any(v.abs().max() > 1e-4 for v in one.values())
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)


PLAIN = Computing(micro_batch_tokens=1, share_prompts=False)
"""Every sample on its own, as it is."""
WAYS = {
    "together": Computing(micro_batch_tokens=10**6, share_prompts=False),
    "shared": Computing(micro_batch_tokens=10**6),
    "shared, cut": Computing(micro_batch_tokens=64),
    "checkpointed": Computing(micro_batch_tokens=64, checkpointing=True),
    "sliced": Computing(micro_batch_tokens=64, logits_chunk=100),
}


@pytest.mark.parametrize("model", ["qwen", "llama", "gpt2", "stablelm"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_same_gradient(model, way, samples):
    # Root mean square norms are computed in float32 whatever the model is in; those of GPT-2 are not.
    exact = {"atol": 1e-12, "rtol": 1e-9} if model == "gpt2" else {"atol": 1e-7, "rtol": 1e-4}
    model = made(model)
    plain, metrics = gradient(model, samples, PLAIN)
    found, of_found = gradient(model, samples, WAYS[way])
    assert_alike(plain, found, **exact)
    free = {"padding": 0, "shared": 0}
    assert of_found | free == pytest.approx(metrics | free, rel=1e-5)


def branches(rng, root, cuts):
    """A sample, and one that leaves it, or the one before, after each of so many ids; advantages of their own."""
    grown = [replace(root, tree="root")]
    for n, cut in enumerate(cuts):
        other, own = grown[n // 2], group(rng, 0, (5 + n,))[0]
        kept = {
            name: getattr(other, name)[:cut] + getattr(own, name) for name in ("ids", "mask", "logprobs", "spliced")
        }
        advantages = (rng.uniform(-1, 1),) * len(kept["ids"])
        weights = other.weights[:cut] + own.weights
        grown.append(replace(other, **kept, advantages=advantages, weights=weights))
    return grown


@pytest.mark.parametrize("model", ["qwen", "llama", "gpt2", "stablelm"])
@pytest.mark.parametrize("way", WAYS)
def test_branches_have_the_gradient_that_they_have_on_their_own(model, way):
    exact = {"atol": 1e-12, "rtol": 1e-9} if model == "gpt2" else {"atol": 1e-7, "rtol": 1e-4}
    rng, model = random.Random(3), made(model)
    roots = group(rng, 9, (30, 24, 12))
    trees = [*branches(rng, roots[0], (20, 24, 25, 12)), *branches(rng, roots[1], (15, 15)), roots[2]]
    trees = [replace(s, tree=f"{s.tree} {n > 4}") if s.tree else s for n, s in enumerate(trees)]
    plain, metrics = gradient(model, trees, PLAIN)
    found, of_found = gradient(model, trees, WAYS[way])
    assert_alike(plain, found, **exact)
    free = {"padding": 0, "shared": 0}
    assert of_found | free == pytest.approx(metrics | free, rel=1e-5)
    assert metrics["shared"] == 0
    if way == "shared" and why_not_packed(model, 64) is None:
        whole = sum(len(s.ids) for s in trees)
        begun = {(s.tree, s.ids[:t]) for s in trees for t in range(10, len(s.ids) + 1)}
        once = 9 + len(begun) + 1  # the prompt; and of a sample that another one goes on from, the last id twice
        assert of_found["shared"] == pytest.approx(1 - once / whole)


@pytest.mark.parametrize(
    "config",
    [
        Grpo(max_grad_norm=1e9, lr=1.0),
        Dapo(mask_negative_spliced=True, max_grad_norm=1e9, lr=1.0),
    ],
    ids=["sequence means", "masked splices"],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_accumulated_gradients_are_those_of_one_batch(qwen, samples, config, checkpointing):
    parts, whole = (Computing(micro_batch_tokens=n, checkpointing=checkpointing) for n in (64, 10**6))
    assert_alike(*(gradient(qwen, samples, c, config)[0] for c in (parts, whole)), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("model", ["qwen", "stablelm"])
def test_bfloat16_is_near_and_leaves_the_weights_float32(model, samples):
    model = made(model)
    # Without the clip, at whose edges the least change switches an id's gradient off.
    config = CONFIG.model_copy(update={"clip_low": 0.99, "clip_high": 99.0})
    exact, of_exact = gradient(model, samples, PLAIN, config, dtype=torch.float32)
    for way in (Computing(dtype="bfloat16"), Computing(dtype="bfloat16", checkpointing=True, logits_chunk=100)):
        found, metrics = gradient(model, samples, way, config, dtype=torch.float32)
        one, other = (torch.cat([v.flatten() for v in g.values()]) for g in (exact, found))
        assert other.dtype == torch.float32
        assert torch.cosine_similarity(one, other, 0) > 0.999
        assert (one - other).norm() < 0.05 * one.norm()
        assert metrics["loss"] == pytest.approx(of_exact["loss"], abs=0.01)


def test_the_model_is_left_as_it_was(qwen, samples):
    before = qwen.config._attn_implementation
    modes = [m.training for m in qwen.modules()]
    with forwards(qwen, samples, Computing(checkpointing=True)) as parts:
        assert any("forward" in vars(m) for m in qwen.modules())
        assert sum(len(part.batch.ids) for part in parts) == len(samples)
    assert qwen.config._attn_implementation == before
    assert [m.training for m in qwen.modules()] == modes
    assert not any(getattr(m, "gradient_checkpointing", False) for m in qwen.modules())
    assert not any("forward" in vars(m) for m in qwen.modules())


@pytest.mark.parametrize(
    ("rate", "outcome"), [(0.0, nullcontext()), (0.1, pytest.raises(ValueError, match=r"OPT.*dropout"))]
)
def test_checkpointing_turns_no_dropout_on(samples, rate, outcome):
    config = OPTConfig(
        vocab_size=31, hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, dropout=rate
    )
    model = OPTForCausalLM(config).eval()
    with outcome, forwards(model, samples, Computing(checkpointing=True)) as parts:
        assert all(part.logprobs.requires_grad for part in parts)


def saved_bytes(model, samples, computing):
    """Of what the forward of the first micro-batch keeps for its backward, the weights left out."""
    weights = {p.data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with forwards(model, samples, computing) as parts:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            part = next(parts)
        part.logprobs.sum().backward()
    model.zero_grad()
    return sum(kept.values())


def test_checkpointing_keeps_less(qwen, samples):
    kept, less = (saved_bytes(qwen, samples, Computing(checkpointing=c)) for c in (False, True))
    assert less < kept / 2


class Largest(TorchDispatchMode):
    """The most elements that a tensor had which an operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_of_a_large_vocabulary_never_exist_at_once(dtype):
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": 150_000, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    samples = group(random.Random(0), 5, (40,) * 10)
    learnt = sum(sum(s.mask) for s in samples)
    chunk = 2_000_000
    assert learnt * 150_000 > 10 * chunk
    largest = Largest()
    with largest, forwards(model, samples, Computing(dtype=dtype, logits_chunk=chunk)) as parts:
        for part in parts:
            part.logprobs.sum().backward()
    assert 0 < largest.elements <= chunk


def test_models_that_cannot_be_packed_are_reported_by_name():
    assert why_not_packed(made("qwen"), 100) is None
    assert why_not_packed(made("gpt2"), 100) is None
    assert "StableLmForCausalLM" in why_not_packed(made("stablelm"), 100)
    sliding = {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}
    windowed = Qwen3ForCausalLM(Qwen3Config(**SIZES, **sliding))
    assert why_not_packed(windowed, 16) is None
    assert "window of 16 tokens, and a sample has 17" in why_not_packed(windowed, 17)


def test_prompts_are_computed_once_a_group(qwen):
    samples = group(random.Random(0), 20, (10, 10, 10, 10))
    computed = {}
    for share in (True, False):
        with forwards(qwen, samples, Computing(share_prompts=share)) as parts:
            computed[share] = sum(part.ids for part in parts)
    assert computed == {True: 20 + 40, False: 80 + 40}
