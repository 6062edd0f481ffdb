"""Adapters: what is trained, what is kept, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import peft
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from retcon.config.schema import ALL_LINEAR, LoraSection
from retcon.core.errors import CheckpointError, MissingExtra, RecipeError
from retcon.models.lora import Adapter, check_lora
from retcon.train.optim import adamw
from retcon.train.rollouts import EngineWeights

pytestmark = pytest.mark.torch
CONFIG = Qwen3Config(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=16)  # fmt: skip
IDS = torch.arange(24).view(2, 12)
SIZES = {**{key: getattr(CONFIG, key) for key in ("vocab_size", "hidden_size", "intermediate_size", "head_dim")},
         "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "dense": ("qwen3", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "fused": ("phi3", {}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "num_experts": 4}),
    "some_dense": ("qwen3_moe", {**EXPERTS, "num_experts": 4, "mlp_only_layers": [0]}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "deepseek": ("deepseek_v3", {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1,
                                 "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
                                 "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8}),
    "shared": ("zamba2", {"layers_block_type": ["mamba", "hybrid", "hybrid"], "num_hidden_layers": 3,
                          "mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8}),
    "phimoe": ("phimoe", {"num_local_experts": 4}),
}  # fmt: skip


def config_of(kind: str) -> PretrainedConfig:
    name, more = KINDS[kind]
    config: PretrainedConfig = AutoConfig.for_model(name, **{**SIZES, **more})
    return config


def made(seed: int = 0, **section: object) -> tuple[Qwen3ForCausalLM, Adapter]:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(CONFIG).eval()
    return model, Adapter(model, LoraSection.model_validate({"rank": 3, **section}), seed=seed)


def step(model: PreTrainedModel, lr: float = 0.1) -> torch.optim.Optimizer:
    optimizer = adamw(model, lr, weight_decay=0.0)
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
    assert {name.rpartition(".")[2] for name, _, _ in adapter.layers()} == {"q_proj", "v_proj"}


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


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:The following .*_pattern keys:RuntimeWarning"
)  # peft's own
@pytest.mark.parametrize(
    ("kind", "targets"),
    [*((kind, ALL_LINEAR) for kind in KINDS if kind not in ("shared", "phimoe")), ("dense", "q_proj+down_proj"),
     ("mixtral", "q_proj+v_proj"), ("some_dense", "gate_proj+up_proj"), ("phimoe", "q_proj")],
)  # fmt: skip
def test_what_is_trained_decodes_and_is_saved(kind: str, targets: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config_of(kind)).save_pretrained(tmp_path)
    section = LoraSection(rank=3, targets=tuple(targets.split("+")))
    check_lora(section, config_of(kind))

    def start() -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        return model

    def logits(model: PreTrainedModel) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(IDS).logits
        return found

    model = start()
    before = logits(model)
    adapter = Adapter(model, section, seed=0)
    weights = EngineWeights(model, torch.float32, adapter)
    step(model, 0.03)
    weights.sync()
    trained = logits(model)
    assert (trained - before).abs().max() > 0.02
    torch.testing.assert_close(logits(weights.model), trained, atol=1e-5, rtol=0)
    (tmp_path / "final/adapter").mkdir(parents=True)
    adapter.save(tmp_path / "final/adapter")
    EngineWeights(model, torch.float32, adapter).model.save_pretrained(tmp_path / "final")
    final = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "final"))
    torch.testing.assert_close(final, trained, atol=1e-5, rtol=0)
    theirs = peft.PeftModel.from_pretrained(start(), str(tmp_path / "final/adapter"))
    torch.testing.assert_close(logits(theirs), final, atol=1e-5, rtol=0)
    resumed = start()
    Adapter(resumed, section, seed=1).load(tmp_path / "final/adapter")
    assert torch.equal(logits(resumed), trained)


@pytest.mark.parametrize(
    ("kind", "section", "said"),
    [
        ("shared", {}, r"shared_transformer\S* of zamba2 cannot be adapted: its weight is another layer's too"),
        ("phimoe", {}, r"mlp\.router of phimoe cannot be adapted: .* other lora\.targets, of all-linear, k_proj"),
        ("mixtral", {"dropout": 0.1}, r"layers of mixtral cannot .* set lora\.dropout=0 or other lora\.targets"),
        ("some_dense", {"targets": ("gate_proj",)}, "gate_proj without also targeting up_proj"),
        ("tied", {"targets": ("embed_tokens",)}, "no linear layer 'embed_tokens'"),
        ("tied", {"targets": ("lm_head",)}, "no linear layer 'lm_head'"),
    ],
)
def test_what_could_not_be_trained_or_merged_is_refused(kind: str, section: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=f"^lora.*{said}"):
        check_lora(LoraSection.model_validate({"rank": 2, **section}), config_of(kind))


def test_servers_are_not_given_adapters_of_experts() -> None:
    section = LoraSection(rank=2)
    check_lora(section, config_of("dense"), served=True)
    with pytest.raises(RecipeError, match=r"of mixtral cannot be adapted: .* engine\.lora=false sends them merged"):
        check_lora(section, config_of("mixtral"), served=True)


def test_without_peft_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"lora\.rank above 0 needs peft: pip install .*\[train\]'"):
        check_lora(LoraSection(rank=2), CONFIG)
    check_lora(LoraSection(), CONFIG)
