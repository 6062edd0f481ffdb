"""Loading a model folder: what is missing or broken is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.build import build_policy
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.engine.local.engine import LocalEngine
from retcon.models.devices import Placement
from retcon.models.loading import load_model

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                    head_dim=8, intermediate_size=8)
    )  # fmt: skip
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_in_evaluation_mode(folder: Path) -> None:
    model = load_model(folder)
    assert not model.training
    assert model.dtype == torch.float32
    assert load_model(folder, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(("file", "words"), [("config.json", "no config.json"), ("model.safetensors", "no weights")])
def test_a_missing_file_is_named(folder: Path, file: str, words: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=words):
        load_model(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.json", "{"), ("config.json", '{"model_type": "nothing"}'), ("model.safetensors", "short")],
)
def test_a_broken_file_is_an_error_that_names_the_folder(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(folder)


def test_weights_that_do_not_belong_to_the_config_are_refused(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"intermediate_size": 8', '"intermediate_size": 16'))
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(folder)


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"float31.*float32"):
        load_model(folder, "float31")


def test_a_policy_computes_as_its_recipe_says(folder: Path) -> None:
    """As rollouts of a training do: what is measured is the model that was trained, in its precision."""
    keys = ["compute.rollout_dtype=bfloat16", "compute.attention=eager", "compute.device=cpu", "run.threads=1",
            "compute.kv_memory_mb=3", "rollout.max_tokens=40", "rollout.lookahead_tokens=9"]  # fmt: skip
    places: list[Placement] = []
    engine = build_policy(load_recipe(None, keys), folder, Chat(ByteTokenizer()), places.append)
    assert isinstance(engine, LocalEngine)
    assert (engine.model.dtype, engine.model.config._attn_implementation) == (torch.bfloat16, "eager")
    assert (engine.max_len, engine.max_requests, engine.stats.kv_budget) == (49, 256, 3 * 2**20)
    assert [(place.rollout_dtype, place.attention) for place in places] == [("bfloat16", "eager")]
