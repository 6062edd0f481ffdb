"""Demonstrations on demand: written once, with a note of what made them."""

from __future__ import annotations

import json
from pathlib import Path

from retcon.build import build_chat, build_tasks
from retcon.cli.common.progress import Tell
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.models.placing import model_folder
from retcon.runs.comparing import differing, relevant
from retcon.store.whole import explained, write_json
from retcon.train.datasets.teach import write_demonstrations


def ensure_demonstrations(recipe: Recipe, file: Path, tell: Tell) -> None:
    """Writes `file` unless it is there. A file without a note beside it is the user's own and is taken as it is.

    Raises CheckpointError where the note says that another recipe made the file, StorageError where nothing can be
    written.
    """
    note = file.with_name(f"{file.name}.recipe.json")
    about = relevant(recipe, "demonstrations")
    if file.exists():
        changed = list(differing(json.loads(note.read_text(encoding="utf-8")), about)) if note.exists() else []
        if changed:
            raise CheckpointError(
                f"{file}: another recipe wrote it ({'; '.join(changed)}; see {note.name}): remove both, or name another"
            )
        return
    folder = model_folder(recipe.model.path)
    chat = build_chat(recipe, folder, build_tasks(recipe, folder))
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, about)
    write_demonstrations(recipe, chat, file, on_progress=tell)
