from __future__ import annotations

from pathlib import Path

import pytest

from retcon.store.fingerprint import files_fingerprint, fingerprint, ids_fingerprint


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


def test_files_are_told_by_what_they_hold_and_their_order_and_not_by_their_names(tmp_path: Path) -> None:
    """What a run goes on from: other demonstrations make another run."""
    one, other, copy = (tmp_path / name for name in ("one", "other", "copy"))
    for file, text in ((one, "1"), (other, "2"), (copy, "1")):
        file.write_text(text)
    found = {files_fingerprint(files) for files in ([one], [one, other], [other, one], [one, other, other], [other])}
    assert len(found) == 5
    assert files_fingerprint([one, other]) == files_fingerprint([copy, other])
    assert files_fingerprint([one]) == fingerprint(one)


def test_ids_are_told_by_their_rows() -> None:
    found = {ids_fingerprint(rows) for rows in ([[1, 2], [3]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2, 3]], [[1, 2, -3]])}
    assert len(found) == 5
    assert ids_fingerprint(iter([(1, 2), (3,)])) == ids_fingerprint([[1, 2], [3]])
