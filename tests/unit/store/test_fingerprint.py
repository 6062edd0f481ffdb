from __future__ import annotations

from pathlib import Path

import pytest

from retcon.store.fingerprint import fingerprint


@pytest.mark.parametrize(
    "weights",
    ["model.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin", "pytorch_model-00002-of-00002.bin"],
)
def test_other_weights_are_another_model(weights: str, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", weights):
        (tmp_path / name).write_bytes(b"{}")
    before = fingerprint(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"of whoever trained it")
    assert fingerprint(tmp_path) == before
    (tmp_path / weights).write_bytes(b"trained on")
    assert fingerprint(tmp_path) != before


def test_weights_that_are_not_loaded_make_no_other_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"these are loaded")
    before = fingerprint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"beside which these are not")
    assert fingerprint(tmp_path) == before
