"""Demonstrations on demand: written once, with a note of what made them."""

from __future__ import annotations

import json
from pathlib import Path

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.cli.progress import Tell
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.models.placing import model_folder
from retcon.rollout.demonstrate import write_demonstrations
from retcon.tasks.registry import task_set

SECTIONS = ("task", "rollout", "sandbox")


def ensure_demonstrations(recipe: Recipe, file: Path, tell: Tell) -> None:
    """Writes `file` unless it is there. A file without a note beside it is the user's own and is taken as it is.

    Raises CheckpointError where the note says that another recipe made the file, or nothing can be written.
    """
    note = file.with_name(f"{file.name}.recipe.json")
    about = _about(recipe)
    if file.exists():
        if note.exists() and json.loads(note.read_text(encoding="utf-8")) != about:
            raise CheckpointError(f"{file}: another recipe wrote it (see {note.name}): remove both, or name another")
        return
    chat = Chat(
        load_tokenizer(model_folder(recipe.model.path)),
        style=recipe.model.style,
        system=task_set(recipe.task.name).system,
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{note} could not be written: {error}") from error
    write_demonstrations(recipe, chat, file, on_progress=tell)


def _about(recipe: Recipe) -> dict[str, object]:
    """What the demonstrations depend on, as JSON gives it back."""
    whole = recipe.model_dump(mode="json")
    about = {section: whole[section] for section in SECTIONS}
    about["model.style"] = recipe.model.style
    about["run.seed"] = recipe.run.seed
    about["sft"] = {"demonstrations": recipe.sft.demonstrations, "max_turns": recipe.sft.max_turns}
    return about
