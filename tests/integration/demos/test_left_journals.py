"""The journal of demonstrations that a process was killed beside, once they were in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.cli.demonstrations import ensure_demonstrations
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.store.whole import alone_on
from training import make_base

pytestmark = pytest.mark.torch
TALK = [{"role": "user", "content": "What is 5 times 6?"}, {"role": "assistant", "content": "So \\boxed{30}."}]


def test_a_journal_of_demonstrations_that_are_made_is_cleared_unless_it_is_in_use_or_they_are_ones_own(
    tmp_path: Path,
) -> None:
    """As a kill leaves it that comes when the file is in its place, and its journal is not yet removed."""
    base, talk, file = make_base(tmp_path / "base", positions=2048), tmp_path / "talk.jsonl", tmp_path / "made.jsonl"
    talk.write_text(json.dumps({"messages": TALK}) + "\n")
    recipe = load_recipe(None, [f"model.path={base}", "demos.kind=transcripts", f"demos.path={talk}"])

    def ensured() -> set[str]:
        ensure_demonstrations(recipe, file, lambda *_: None)
        return {path.name for path in tmp_path.glob("made.jsonl.*")}

    note, journal = tmp_path / "made.jsonl.recipe.json", tmp_path / "made.jsonl.partial"
    assert ensured() == {note.name}
    journal.write_text('{"made_from":{}}\n')
    with alone_on(journal):
        assert ensured() == {note.name, journal.name}
    assert ensured() == {note.name}
    journal.write_text("words\n")
    assert ensured() == {note.name, journal.name}, "somebody else's"
    journal.write_text('{"made_from":{}}\n')
    told = note.read_text()
    note.write_text(told.replace('"transcripts"', '"teacher"'))
    with pytest.raises(CheckpointError, match=r"demos\.kind"):
        ensured()
    note.unlink()
    assert ensured() == {journal.name}, "beside a file of one's own"
