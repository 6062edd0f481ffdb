"""Adapters: what is trained, what is kept, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import peft
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import LoraSection
from retcon.core.errors import CheckpointError, MissingExtra, RecipeError
from retcon.models.lora import Adapter, check_lora
from retcon.train.optim import adamw

pytestmark = pytest.mark.torch
CONFIG = Qwen3Config(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=16)  # fmt: skip
IDS = torch.arange(24).view(2, 12)


def made(seed: int = 0, **section: object) -> tuple[Qwen3ForCausalLM, Adapter]:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(CONFIG).eval()
    return model, Adapter(model, LoraSection.model_validate({"rank": 3, **section}), seed=seed)


def step(model: Qwen3ForCausalLM) -> torch.optim.Optimizer:
    optimizer = adamw(model, 0.1, weight_decay=0.0)
    for _ in range(2):
        model(IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_only_adapters_are_trained() -> None:
    model, adapter = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = step(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert len(optimizer.state) == len(changed)
    # q, k, v, o and the three of the MLP, in 2 layers, each with A and B; the output layer is left alone
    assert len(changed) == 2 * 7 * 2
    assert len(list(adapter.layers())) == 2 * 7


def test_their_first_weights_come_from_the_seed_alone() -> None:
    one, again, other = ({n: v for n, v in made(seed)[0].state_dict().items() if "lora_A" in n} for seed in (1, 1, 2))
    assert all(torch.equal(one[n], again[n]) for n in one)
    assert not any(torch.equal(one[n], other[n]) for n in one)


def test_named_targets_alone() -> None:
    _, adapter = made(targets=("q_proj", "v_proj"))
    assert {name.rpartition(".")[2] for name, _ in adapter.layers()} == {"q_proj", "v_proj"}


def test_dropout_is_of_training_alone() -> None:
    model, _ = made(dropout=0.5)
    step(model)
    assert torch.equal(model(IDS).logits, model(IDS).logits)
    model.train()
    assert not torch.equal(model(IDS).logits, model(IDS).logits)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's own
def test_what_is_saved_peft_loads(tmp_path: Path) -> None:
    model, adapter = made()
    step(model)
    adapter.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    torch.manual_seed(0)
    theirs = peft.PeftModel.from_pretrained(Qwen3ForCausalLM(CONFIG), str(tmp_path)).eval()
    assert torch.equal(theirs(IDS).logits, model(IDS).logits)
    ours, other = made(seed=5)
    other.load(tmp_path)
    assert torch.equal(ours(IDS).logits, model(IDS).logits)


def test_saving_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made()[1].save(tmp_path / name)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made()[1].save(tmp_path)
    for section in ({"rank": 4}, {"targets": ("q_proj",)}):
        with pytest.raises(CheckpointError, match="other layers or another rank"):
            made(**section)[1].load(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors cannot be read"):
        made()[1].load(tmp_path)


def test_a_target_that_is_no_linear_layer_is_refused_with_the_nearest() -> None:
    check_lora(LoraSection(rank=2, targets=("q_proj", "down_proj")), CONFIG)
    with pytest.raises(
        RecipeError, match=r"no linear layer 'qproj' \(did you mean 'q_proj'\?\).*all-linear, down_proj"
    ):
        check_lora(LoraSection(rank=2, targets=("qproj",)), CONFIG)
    with pytest.raises(RecipeError, match="no linear layer 'lm_head'"):
        check_lora(LoraSection(rank=2, targets=("lm_head",)), CONFIG)


def test_without_peft_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"lora\.rank above 0 needs peft: pip install .*\[train\]'"):
        check_lora(LoraSection(rank=2), CONFIG)
    check_lora(LoraSection(), CONFIG)
