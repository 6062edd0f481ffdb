"""Fingerprints: short hashes of files, models and token ids."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path


def fingerprint(path: str | Path) -> str:
    """Hash a file, or a model folder's configuration, weights and tokenizer."""
    path = Path(path)
    # If a folder has its weights in both formats, those in safetensors are loaded.
    weights = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    return _of((path,) if path.is_file() else (*weights, path / "config.json", path / "tokenizer.json"))


def files_fingerprint(files: Iterable[Path]) -> str:
    """Hash the contents of files, in this order; of one file, its `fingerprint`."""
    return _of(files)


def template_fingerprint(folder: Path) -> str:
    """Hash a model folder's chat template and tokenizer configuration."""
    return _of((folder / "tokenizer_config.json", *sorted(folder.rglob("*.jinja"))))


def ids_fingerprint(rows: Iterable[Sequence[int]]) -> str:
    """Hash token ids, row by row."""
    digest = hashlib.sha256()
    for row in rows:
        ids = array("q", row)
        digest.update(len(ids).to_bytes(8, "big") + ids.tobytes())
    return digest.hexdigest()[:16]


def _of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]
