"""What a forward of training is asked for and gives, packed and padded, beside a plain forward of each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, StableLmConfig, StableLmForCausalLM

from retcon.core.types import Sample
from retcon.models.devices import Computing, TrainDtype
from retcon.models.placing import output_head
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch
SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 64}  # fmt: skip


def qwen() -> PreTrainedModel:
    """Its samples are packed."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).eval()


def stablelm() -> PreTrainedModel:
    """Its samples are padded."""
    torch.manual_seed(0)
    return StableLmForCausalLM(StableLmConfig(**SIZES)).eval()


def sample(first: int, prompt: int, own: int, tree: str | None = None) -> Sample:
    ids = tuple((first + 7 * n) % 31 for n in range(prompt + own))
    return Sample(ids, (0,) * prompt + (1,) * own, (None,) * len(ids), (0,) * len(ids), tree=tree)


@pytest.mark.parametrize("make", [qwen, stablelm])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_parts_keep_to_the_budget_and_give_what_a_plain_forward_does(
    make: Callable[[], PreTrainedModel], temperature: float
) -> None:
    """Samples of 10 and 9 ids are 20 with what pads them."""
    model, shapes = make(), []
    samples = [sample(1, 3, 4), sample(2, 4, 6), sample(3, 2, 10), sample(4, 5, 4)]
    computing = Computing(micro_batch_tokens=20, temperature=temperature)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # nearly flat, they would be much the same at any temperature
        plain = {one: model(torch.tensor([one.ids]), use_cache=False).logits[0] / temperature for one in samples}
        with forwards(model, samples, computing, entropies=True) as parts:
            for part in parts:
                shapes.append(([len(one.ids) for one in part.samples], part.ids, part.padded))
                assert part.entropies is not None
                assert not part.logprobs[~part.batch.mask].any()
                assert not part.entropies[~part.batch.mask].any()
                for n, one in enumerate(part.samples):
                    mask = part.batch.mask[n]
                    logprobs = plain[one].log_softmax(-1)[mask.nonzero()[:, 0] - 1]
                    chosen = logprobs.gather(1, part.batch.ids[n, mask][:, None])[:, 0]
                    torch.testing.assert_close(part.logprobs[n, mask], chosen, atol=1e-4, rtol=1e-4)
                    entropies = -(logprobs.exp() * logprobs).sum(-1)
                    torch.testing.assert_close(part.entropies[n, mask], entropies, atol=1e-4, rtol=1e-4)
    assert shapes == [([12], 12, 12), ([10, 9], 19, 20), ([7], 7, 7)]


def test_what_samples_of_a_tree_learn_alike_goes_through_the_output_layer_once() -> None:
    """4 of the 5 of each; an output layer that is no plain linear one is called on them."""
    model, rows = qwen(), []
    model.set_output_embeddings(nn.Sequential(model.get_output_embeddings()))
    output_head(model)  # found out before anything is counted
    model.lm_head.register_forward_hook(lambda module, given, out: rows.append(len(out)))
    one, short = sample(1, 3, 5, tree="t"), sample(1, 3, 4, tree="t")
    other = Sample((*short.ids, 30), *(getattr(one, name) for name in ("mask", "logprobs", "spliced")), tree="t")
    with torch.no_grad(), forwards(model, [one, other], Computing()) as parts:
        (part,) = parts
    assert max(rows) == 4 + 2
    assert torch.equal(part.logprobs[0, 3:7], part.logprobs[1, 3:7])
    assert part.logprobs[0, 7] != part.logprobs[1, 7]


@pytest.fixture
def other_default() -> Iterator[None]:
    """As on GPUs, where autocast is of float16 unless it is told otherwise."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    yield
    torch.set_autocast_dtype("cpu", before)


@pytest.mark.usefixtures("other_default")
@pytest.mark.parametrize(
    ("weights", "dtype", "expected"),
    [
        (torch.float32, "float32", torch.float32),
        (torch.float64, "float32", torch.float64),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
)
def test_products_and_masks_are_of_the_recipes_dtype_and_no_keys_are_kept(
    weights: torch.dtype, dtype: TrainDtype, expected: torch.dtype
) -> None:
    model, found = qwen().to(weights), []
    assert model.config.use_cache

    def note(module: nn.Module, args: object, named: dict[str, Any], out: Any) -> None:
        masks = [bucket.prefix.mask.dtype for bucket in named["packing"].buckets if bucket.prefix is not None]
        found.append((masks, out.past_key_values))

    samples = [sample(1, 3, 4), sample(1, 3, 5)]
    with torch.no_grad(), forwards(model, samples, Computing(dtype=dtype)) as parts:
        list(parts)  # what is found out of a model once
    model.base_model.register_forward_hook(note, with_kwargs=True)
    products = []
    model.base_model.layers[0].mlp.down_proj.register_forward_hook(
        lambda module, given, out: products.append(out.dtype)
    )
    with torch.no_grad(), forwards(model, samples, Computing(dtype=dtype)) as parts:
        for part in parts:
            assert part.logprobs.dtype == (torch.float64 if weights == torch.float64 else torch.float32)
    assert found == [([expected], None)]
    assert products == [expected]
