"""Long commands say what they do; an empty input is no success; the shell knows recipes and keys."""

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.arguments import Interrupted, complete_key, complete_recipe, interruptible
from retcon.core.errors import RecordError
from retcon.runs.progress import Lines, RolloutProgress, StepProgress


def test_rollouts_are_shown_before_the_first_step_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines: list[str] = []
    shown = StepProgress(Lines("training", lines.append), "training", 2, clock=lambda: now)
    shown.rollouts(1, 0, 8, 0)
    for now, done, tokens in ((4.0, 1, 90), (10.0, 2, 300), (20.0, 3, 500), (50.0, 4, 700)):  # noqa: B007
        shown.rollouts(1, done, 8, tokens)
    assert capsys.readouterr().err.splitlines() == [
        "step 1/2: 2 of 8 rollouts, 300 tokens, 27 a second, all rollouts in about 1:17",
        "step 1/2: 4 of 8 rollouts, 700 tokens, 14 a second, all rollouts in about 2:33",
    ]


def test_an_evaluation_shows_tokens_before_a_rollout_is_done_and_its_end_after(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    shown = RolloutProgress(Lines("evaluating", [].append), "evaluating", clock=lambda: now)
    for now, tokens in ((1.0, 20), (6.0, 600), (20.0, 800)):  # noqa: B007
        shown.sampled(tokens)
    for now, done in ((40.0, 51), (60.0, 55), (90.0, 60), (100.0, 100)):  # noqa: B007
        shown(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "evaluating: no rollout done yet, 600 tokens, 100 a second",
        "evaluating: 51 of 100 rollouts, 800 tokens, 20 a second, all rollouts in about 32:40",
        "evaluating: 60 of 100 rollouts, 800 tokens, 9 a second, all rollouts in about 6:00",
        "evaluating: 100 of 100 rollouts, 800 tokens, 8 a second",
    ]


def _ended_by_sigterm() -> None:
    with interruptible("kept"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["in front", "behind a script"])
def test_sigterm_ends_a_command_as_ctrl_c_does(ctrl_c: signal.Handlers) -> None:
    before, usual = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, ctrl_c)
    try:
        with pytest.raises(Interrupted, match="kept"):
            _ended_by_sigterm()
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGINT, usual)


def test_an_empty_input_is_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for words in (["purify", str(empty), "-o", str(tmp_path / "clean.jsonl")], ["show", str(empty)]):
        found = CliRunner().invoke(app, words)
        assert isinstance(found.exception, RecordError), words
        assert "empty: there is no" in str(found.exception) or "is empty: there is no" in str(found.exception)


def test_the_shell_completes_recipes_and_keys() -> None:
    assert complete_recipe("quickstart/s") == ["quickstart/saar"]
    assert complete_key("rl.minib") == ["rl.minibatches="]
    assert complete_key("rol") == ["rollout."]
