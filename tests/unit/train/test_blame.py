"""What is to blame for a failed call, by what corrected it: on rollouts of the scripted engine, whose ids are bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playing import call, play
from retcon.core.types import Trajectory, history_ids, to_sample
from retcon.purify.kinds.describe import Describe
from retcon.purify.saar import Saar
from retcon.tools.scripted import ScriptedTool
from retcon.train.objective import credit as blame
from retcon.train.objective.credit import find_blame, token_advantages

MISSPELT, ALSO, RIGHT, DONE = "print(6 * vlue)", "print(6 * valye)", "print(6 * value)", "It is 42."
FAILS = {MISSPELT: "error", ALSO: "error"}


def rollout(*replies: str, fails: dict[str, str] = FAILS) -> Trajectory:
    return play(list(replies), fails).trajectory


def to_blame(trajectory: Trajectory) -> list[str]:
    """The texts that are to blame, one a stretch of tokens."""
    found, texts = find_blame(trajectory), [""]
    for id, wrong in zip(history_ids(trajectory), found, strict=True):
        if wrong:
            texts[-1] += chr(id) if id < 256 else "<end>"
        elif texts[-1]:
            texts.append("")
    return [text for text in texts if text]


@pytest.mark.parametrize(
    ("failed", "right", "wrong"),
    [
        ("print(n)", "n = 6\nprint(n)", ["p"]),  # what is missing is missed where something else stands
        ("print((6)", "print((6))", ["\n"]),
        ("print(x.y)", "print(x)", [".y"]),
        ("a = 1", "b = 1", ["a"]),
        ("a = 1 + x", "b = 1 + y", ["a", "x"]),
        ("a = 1\n" + "t = t + 1\n" * 30 + "x", "b = 1\n" + "t = t + 1\n" * 30 + "y", ["a", "x"]),
    ],
)
def test_what_the_correction_has_otherwise_is_to_blame(failed: str, right: str, wrong: list[str]) -> None:
    assert to_blame(rollout(call(failed), call(right), DONE, fails={failed: "error"})) == wrong


def test_what_is_too_long_to_be_aligned_is_to_blame_from_where_the_two_part(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, right = "a = [1, 2, 3]", "b = [1, 2, 3]"
    made = rollout(call(failed), call(right), DONE, fails={failed: "error"})
    assert to_blame(made) == ["a"]
    monkeypatch.setattr(blame, "MOST_ALIGNED", 5)
    assert to_blame(made) == [call(failed).removeprefix("```python\n") + "<end>"]
    monkeypatch.setattr(blame, "MOST_ALIGNED", 30)
    assert to_blame(made) == ["a"]
    longer = rollout(call(failed), call(right + " + [4]" * 9), DONE, fails={failed: "error"})
    assert to_blame(longer) == [call(failed).removeprefix("```python\n") + "<end>"], "of either of the two"


def test_a_call_that_works_when_it_is_made_again_has_nothing_to_blame() -> None:
    outcomes = iter([("no", "error", None), ("yes", "ok", None)])
    again = play([call(RIGHT), call(RIGHT), DONE], tool=ScriptedTool(lambda _: next(outcomes))).trajectory
    assert again.failures == 1
    assert to_blame(again) == []


def test_a_call_cut_off_that_its_correction_goes_on_with_has_nothing_to_blame() -> None:
    made = rollout(call(MISSPELT), call(RIGHT), DONE)
    failed, fix, *others = made.turns
    (written,), (right,) = failed.generated, fix.generated
    cut = replace(written, ids=right.ids[:-1], logprobs=None)
    assert to_blame(replace(made, turns=(replace(failed, segments=(cut, *failed.segments[1:])), fix, *others))) == []


def test_reasoning_is_not_to_blame() -> None:
    assert to_blame(rollout(call(MISSPELT, "So. "), call(RIGHT, "Oops, again. "), DONE)) == ["l"]


def test_every_failed_call_is_compared_with_the_call_that_works() -> None:
    assert to_blame(rollout(call(MISSPELT), call(ALSO), call(RIGHT), DONE)) == ["l", "y"]


def test_a_call_that_nothing_corrects_is_to_blame_as_a_whole() -> None:
    assert to_blame(rollout(call("1"), call(MISSPELT, "So. "), DONE)) == [call(MISSPELT) + "<end>"]
    assert to_blame(rollout(call(RIGHT), call(MISSPELT), DONE)) == [call(MISSPELT) + "<end>"], "only what comes later"


def test_a_rollout_without_a_failure_has_nothing_to_blame() -> None:
    assert to_blame(rollout(call(RIGHT), DONE)) == []


def test_what_was_repaired_has_nothing_to_blame() -> None:
    assert to_blame(play([call(MISSPELT), call(RIGHT), DONE], FAILS, repair=Saar()).trajectory) == []


def test_a_call_that_begins_within_a_token_takes_its_turn_along() -> None:
    first, *others = rollout(call(MISSPELT, "So. "), DONE).turns
    within = replace(first, calls=tuple(replace(one, start=None) for one in first.calls))
    assert to_blame(replace(rollout(call(MISSPELT, "So. "), DONE), turns=(within, *others))) == [
        call(MISSPELT, "So. ") + "<end>"
    ]


def test_only_a_positive_advantage_is_turned_and_only_on_what_is_to_blame() -> None:
    trajectory = rollout(call(MISSPELT), call(RIGHT), DONE)
    wrong, mask = find_blame(trajectory), to_sample(trajectory, scored=False).mask
    length = len(wrong)
    assert token_advantages(trajectory, length, 0.8, 0.25) == tuple(-0.2 if w else 0.8 for w in wrong)
    assert all(m for m, w in zip(mask, wrong, strict=True) if w)
    for advantage, weight in ((-0.8, 0.25), (0.0, 0.25), (0.8, 0.0)):
        assert token_advantages(trajectory, length, advantage, weight) == (advantage,) * length


@pytest.mark.parametrize("words", ["So. ", ""])
def test_a_described_call_is_gone_and_its_words_are_not_to_blame(words: str) -> None:
    made = play([call(MISSPELT, words), call(RIGHT), DONE], FAILS, repair=Describe()).trajectory
    assert made.turns[0].repair is not None
    assert made.turns[0].repair.decision == "described"
    assert to_blame(made) == []
