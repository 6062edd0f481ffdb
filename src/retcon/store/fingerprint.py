"""What something was made from, told by content rather than by name."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path


def fingerprint(path: str | Path) -> str:
    """A short hash of a file, or of a model folder's configuration, weights and tokenizer: what a run started from."""
    path = Path(path)
    # Where a folder has its weights in both formats, those in safetensors are loaded.
    weights = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    return _of((path,) if path.is_file() else (*weights, path / "config.json", path / "tokenizer.json"))


def files_fingerprint(files: Iterable[Path]) -> str:
    """A short hash of the contents of files, in this order; of one file, the `fingerprint` of it."""
    return _of(files)


def template_fingerprint(folder: Path) -> str:
    """A short hash of the files that say how a model in a folder is talked to."""
    return _of((folder / "tokenizer_config.json", *sorted(folder.rglob("*.jinja"))))


def ids_fingerprint(rows: Iterable[Sequence[int]]) -> str:
    """A short hash of token ids, row by row."""
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
