"""Loading a model folder: what is missing or broken is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.core.errors import CheckpointError
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


def test_weights_that_do_not_belong_to_the_config_are_refused(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"intermediate_size": 8', '"intermediate_size": 16'))
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(folder)


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"float31.*float32"):
        load_model(folder, "float31")
