"""What a training says to run next, and what of a record is emptied once its transcript is repaired."""

from functools import partial
from pathlib import Path

import pytest

from retcon.cli.arguments import Interrupted, describe_kept, interruptible, print_trained
from retcon.transcripts.items import renew_record


def test_what_to_run_next_names_the_recipe_and_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = ["own.toml", "task.path=other file.jsonl"]
    print_trained(Path("runs/a/final"), Path("runs/a"), recipe=recipe)
    assert "retcon eval runs/a own.toml 'task.path=other file.jsonl' --out runs/a/eval" in capsys.readouterr().out


def test_ctrl_c_promises_nothing_of_a_run_that_was_not_begun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted, match="run was not begun"), interruptible(partial(describe_kept, out)):
        raise KeyboardInterrupt
    with pytest.raises(Interrupted, match="holds is kept"), interruptible(partial(describe_kept, tmp_path)):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["rollout_routed_experts", "teacher_log_probs", "mopd_teacher_log_probs"])
def test_what_was_worked_out_of_the_tokens_is_emptied(name: str) -> None:
    record = {"messages": [], name: [1.0], "other": [2.0]}
    assert renew_record(record, ["messages"], []) == {"messages": [], name: [], "other": [2.0]}
