"""Demonstrations on demand, written once, with a note of recipe and candidates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from retcon.build import build_chat, build_tasks, resolve_lengths
from retcon.chat.tokenizer import load_tokenizer
from retcon.chat.types import Tokenizer
from retcon.cli.arguments import names_demos
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecipeError, nearest_path
from retcon.models.locating import model_folder
from retcon.rollout.lengths import DerivedLength, context_of, open_keys, with_lengths
from retcon.runs.folder import as_now, differing, relevant
from retcon.runs.progress import OnProgress
from retcon.store.whole import check_regular_file, storage_errors, write_json

if TYPE_CHECKING:
    from retcon.models.devices import OnPlace
    from retcon.train.demos.making import Summary

MADE = "made"
"""Of the note: a `Summary`."""
TOKENS = {"vocabulary", "thinking", "chat_template_kwargs"}
"""Of the note, in its section `model`: whose token ids the file has; notes of before Retcon wrote it lack it."""


def check_demonstrations(recipe: Recipe, overrides: Sequence[str], file: Path, command: str) -> None:
    """Raise RecipeError for a missing file if [demos] is not set. Else a mistyped name would train on the default's
    number game. A file that is begun passes. overrides: those of the recipe. command: makes the file. Raises
    CheckpointError as `has_journal`."""
    from retcon.train.demos.making import has_journal

    if file.exists() or has_journal(file) or _note_of(file).exists() or names_demos(recipe, overrides):
        return
    raise RecipeError(
        f"{file} is not there{nearest_path(file)}: give an existing file. `{command}` makes demonstrations, and so "
        f"does this command where [demos] is set, as with demos.kind={recipe.demos.kind}"
    )


def ensure_demonstrations(
    recipe: Recipe, file: Path, tell: OnProgress, on_place: OnPlace | None = None
) -> Summary | None:
    """Write `file` unless it exists; return the summary of its candidates if known. A file
    without a note beside it is the user's own and is taken as it is. Lengths that the recipe leaves open are as in
    training (`resolve_lengths`); transcripts, which are not rolled out, may be as long as the model's context.

    Raises CheckpointError where the note says that another recipe made the file, or that it was made for a model with
    other tokens, StorageError where nothing can be written, and what `write_demonstrations` raises.
    """
    note = _note_of(file)
    if file.exists():
        made = _read_note(file, note, recipe)
        from retcon.train.demos.making import remove_journal

        if made is not None:  # the user may have put a file beside the begun one
            remove_journal(file)
        return made
    check_regular_file(file)
    folder = model_folder(recipe.model.path)
    tasks = build_tasks(recipe, folder) if recipe.demos.of_tasks else None
    keys = _open_keys(recipe)
    if tasks is not None:
        recipe, _ = resolve_lengths(recipe, folder, tasks)
    elif keys:
        recipe = with_lengths(recipe, [DerivedLength(keys[0], context_of(folder), "the model's context")])
    chat = build_chat(recipe, folder, tasks)
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)

    def noted(made: Summary) -> None:
        write_json(note, {**_about(recipe, chat.tokenizer), MADE: made.as_dict()})

    from retcon.train.demos.making import write_demonstrations

    return write_demonstrations(recipe, chat, file, tasks=tasks, on_progress=tell, on_place=on_place, on_made=noted)


def _note_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.recipe.json")


def _open_keys(recipe: Recipe) -> list[str]:
    """The keys of lengths that the recipe leaves to the model and, where there are any, the tasks."""
    if recipe.demos.of_tasks:
        return open_keys(recipe)
    return [] if "max_tokens" in recipe.rollout.model_fields_set else ["rollout.max_tokens"]


def _about(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    """Settings that a file's demonstrations depend on."""
    from retcon.train.datasets.demonstrations import vocabulary_of

    about = relevant(recipe, "demonstrations")
    prompting = {key: getattr(recipe.model, key) for key in ("thinking", "chat_template_kwargs")}
    tokens = {"vocabulary": vocabulary_of(tokenizer), **prompting}
    return {**about, "model": {**about["model"], **tokens}}


def _read_note(file: Path, note: Path, recipe: Recipe) -> Summary | None:
    if not note.exists():
        return None
    from retcon.train.demos.making import Summary

    try:
        noted = msgspec.json.decode(note.read_bytes(), type=dict[str, dict[str, Any]])
        made = Summary.of_dict(noted[MADE]) if MADE in noted else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, LookupError) as error:
        raise CheckpointError(f"{note} is broken ({error!r}): remove it and {file}, or name another") from error
    left_open = _open_keys(recipe)
    # Earlier versions' notes lack newer sections and TOKENS: only what they hold is compared.
    known = {
        name: {
            key: noted[name].get(key, value) if f"{name}.{key}" in left_open else value
            for key, value in values.items()
            if key in noted[name] or key not in TOKENS
        }
        for name, values in _about(recipe, load_tokenizer(model_folder(recipe.model.path))).items()
        if name in noted
    }
    changed = list(differing(as_now(noted, recipe, known), known))
    if changed:
        raise CheckpointError(
            f"{file}: another recipe wrote it ({'; '.join(changed)}; see {note.name}): remove both, or name another"
        )
    return made
