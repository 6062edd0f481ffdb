"""Demonstrations on demand: written once, with a note of what made them and what became of the candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retcon.build import build_chat, build_tasks
from retcon.cli.common.progress import Tell
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.models.placing import model_folder
from retcon.runs.comparing import differing, relevant
from retcon.store.outputs import refuse_special
from retcon.store.whole import explained, write_json
from retcon.train.demos.making import Summary, write_demonstrations

if TYPE_CHECKING:
    from retcon.models.devices import OnPlace

MADE = "made"
"""Of the note: a `Summary`."""


def ensure_demonstrations(recipe: Recipe, file: Path, tell: Tell, on_place: OnPlace | None = None) -> Summary | None:
    """Writes `file` unless it is there, and says what became of the candidates, None where that is not known. A file
    without a note beside it is the user's own and is taken as it is.

    Raises CheckpointError where the note says that another recipe made the file, StorageError where nothing can be
    written, and what `write_demonstrations` raises.
    """
    note = file.with_name(f"{file.name}.recipe.json")
    about = relevant(recipe, "demonstrations")
    if file.exists():
        return _already(file, note, about)
    refuse_special(file)
    folder = model_folder(recipe.model.path)
    tasks = build_tasks(recipe, folder) if recipe.demos.of_tasks else None
    chat = build_chat(recipe, folder, tasks)
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    summary = write_demonstrations(recipe, chat, file, tasks=tasks, on_progress=tell, on_place=on_place)
    write_json(note, {**about, MADE: summary.as_dict()})
    return summary


def _already(file: Path, note: Path, about: Mapping[str, Mapping[str, object]]) -> Summary | None:
    if not note.exists():
        return None
    told: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    # A note of before a section was there says nothing about it.
    changed = list(differing(told, {name: values for name, values in about.items() if name in told}))
    if changed:
        raise CheckpointError(
            f"{file}: another recipe wrote it ({'; '.join(changed)}; see {note.name}): remove both, or name another"
        )
    return Summary.of_dict(told[MADE]) if MADE in told else None
