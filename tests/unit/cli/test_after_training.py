"""What a training says to run next, and what of a record is emptied once its transcript is repaired."""

from pathlib import Path

import pytest

from retcon.cli.common.arguments import tell_trained
from retcon.transcripts.reading.stale import without_stale


def test_what_to_run_next_names_the_recipe_and_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = ["own.toml", "task.path=other file.jsonl"]
    tell_trained(Path("runs/a/final"), Path("runs/a"), recipe=recipe)
    assert "retcon eval runs/a own.toml 'task.path=other file.jsonl' --out runs/a/eval" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rollout_routed_experts", "teacher_log_probs", "mopd_teacher_log_probs"])
def test_what_was_worked_out_of_the_tokens_is_emptied(name: str) -> None:
    record = {"messages": [], name: [1.0], "other": [2.0]}
    assert without_stale(record, ["messages"]) == {"messages": [], name: [], "other": [2.0]}
