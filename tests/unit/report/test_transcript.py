"""What a transcript prints: everything that was said, safely, with its origin marked with and without colour."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from rich.console import Console, RenderableType

from retcon.cli.show import _table
from retcon.core.types import (
    Branch,
    Kind,
    Observation,
    Provenance,
    RepairRecord,
    Segment,
    Status,
    ToolCall,
    Trajectory,
    Turn,
)
from retcon.report.transcript import show_purification, show_trajectory
from strategies import trajectories


def printed(shown: RenderableType, width: int = 80, *, styles: bool = False) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(shown)
    return console.export_text(styles=styles)


def attempt(said: str, code: str, status: Status, output: str) -> Turn:
    text = f"{said}\n```python\n{code}\n```<|im_end|>"
    segments = (Segment("sampled", text), Segment("scaffold", "\n<|im_start|>tool\n"), Segment("observation", output))
    call = ToolCall("0.0", "python", {"code": code}, len(said) + 1)
    return Turn(segments, (call,), (Observation("0.0", output, status, seconds=0.25),), "call")


FAILED = attempt("first the gcd", "x = gcd(8, 6)", "error", "NameError: name 'gcd'")
WORSE = attempt("import it", "from maths import gcd", "timeout", "took too long")
FIX = attempt("other module", "from math import gcd", "ok", "2")
ANSWER = Turn((Segment("sampled", "it is 2.<|im_end|>"),))


def lived(*turns: Turn, prompt: str = "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\n") -> Trajectory:
    given_prompt = (Segment("prompt", prompt),)
    provenance = Provenance(purified=True)
    return Trajectory("run/3-1", "task-7", given_prompt, (*turns, ANSWER), 1.0, provenance=provenance, answer="2")


def shallow() -> Turn:
    said, call = "first the gcd\n", FIX.calls[0]
    spliced = Segment("spliced", FIX.text[call.char :])
    segments = (Segment("sampled", said), spliced, *FIX.segments[1:])
    repair = RepairRecord("shallow", 2, 0.834)
    return Turn(segments, (replace(call, char=len(said)),), FIX.observations, "call", (FAILED, WORSE, FIX), repair)


def deep() -> Turn:
    spliced = (Segment("spliced", FIX.text), *FIX.segments[1:])
    return replace(FIX, segments=spliced, abandoned=(FAILED, FIX), repair=RepairRecord("deep", 1, 0.2))


def unrepaired() -> Turn:
    return replace(FAILED, abandoned=(WORSE,), repair=RepairRecord("unrepaired", 1, reason="budget"))


def test_a_branch_says_what_it_left_and_where() -> None:
    left = Branch("run/3-0", "run/3-0", 1, 57, 1.25, 0.5)
    shown = printed(show_trajectory(replace(lived(FIX), branch=left)), width=300)
    assert "branches off run/3-0 after turn 1, 57 tokens shared" in shown
    assert "entropy there 1.25 nats a token, +0.50 over the first turn's" in shown
    listed = printed(_table([lived(FIX), replace(lived(FIX), branch=left)]), width=200).splitlines()
    assert "branch of, after turn" in listed[0]
    assert "run/3-0, 1" in listed[2]
    assert "branch of" not in printed(_table([lived(FIX)]), width=200)


def test_a_trajectory_as_it_stands() -> None:
    assert printed(show_trajectory(lived(shallow()))).splitlines() == [
        "────────────────────────────── trajectory run/3-1 ──────────────────────────────",
        "task task-7 · 1 call, 0 failed · as sampled: 3 calls, 2 failed · 0 tokens ", "sampled · purifier armed",
        "     user │ what is it?", "turn 1 · call ──────────────────────────────────────────────────────────────────",
        "   repair │ shallow: program replaced · similarity 0.83 · 2 attempts", "  sampled │ first the gcd",
        "  spliced + ```python", "          + from math import gcd", "          + ```<|im_end|>",
        "       ok │ 2  0.25 s", "turn 2 · answer ────────────────────────────────────────────────────────────────",
        "  sampled │ it is 2.<|im_end|>",
        "────────────────────────────────────────────────────────────────────────────────",
        "reward 1 · stop answer · answer 2",
    ]  # fmt: skip


FIRST = ["first the gcd", "```python", "x = gcd(8, 6)", "```<|im_end|>"]
SECOND = ["import it", "```python", "from maths import gcd", "```<|im_end|>"]
THIRD = ["other module", "```python", "from math import gcd", "```<|im_end|>"]


NOT_WRITTEN = ("user", "repair", "ok", "error", "timeout")  # labels of rows that the model did not write


@pytest.mark.parametrize(
    ("turn", "before", "after"),
    [
        (shallow(), [("│---", FIRST), ("----", SECOND), ("-+++", THIRD)], [("│+++", [FIRST[0], *THIRD[1:]])]),
        (deep(), [("----", FIRST), ("++++", THIRD)], [("++++", THIRD)]),
        (unrepaired(), [("││││", FIRST), ("----", SECOND)], [("││││", FIRST)]),
    ],
)
def test_before_and_after(turn: Turn, before: list[tuple[str, list[str]]], after: list[tuple[str, list[str]]]) -> None:
    lines = printed(show_purification(lived(turn))).splitlines()
    middle = lines.index("after: what is learnt from")
    end = next(n for n, line in enumerate(lines) if line.startswith("turn 2"))
    for found, expected in ((lines[:middle], before), (lines[middle:end], after)):
        rows = [
            line[10:] for line in found if line[10:12] in ("│ ", "+ ", "- ") and line[:9].strip() not in NOT_WRITTEN
        ]
        assert rows == [f"{bar} {text}" for bars, texts in expected for bar, text in zip(bars, texts, strict=True)]


def test_what_was_taken_out_is_struck_and_what_was_put_in_is_green() -> None:
    shown = printed(show_purification(lived(shallow())), styles=True)
    assert "\x1b[9;31mx = gcd(8, 6)\x1b[0m" in shown
    assert "\x1b[32mfrom math import gcd\x1b[0m" in shown
    assert "\x1b[31mNameError: name 'gcd'\x1b[0m" in shown
    assert "\x1b[32m2\x1b[0m" in shown


def test_the_two_stand_side_by_side_where_there_is_room() -> None:
    heading = "before: as it was sampled"
    wide = printed(show_purification(lived(shallow())), width=120).splitlines()
    assert any(line.startswith(heading) and "after: what is learnt from" in line for line in wide)
    narrow = printed(show_purification(lived(shallow())), width=80).splitlines()
    assert heading in [line.strip() for line in narrow]
    assert max(map(len, wide)) <= 120
    assert max(map(len, narrow)) <= 80


def test_nothing_to_show_is_reported() -> None:
    assert "No turn was repaired" in printed(show_purification(lived(FAILED)))
    assert "No turn was repaired" not in printed(show_purification(lived(shallow())))
    answered = replace(FAILED, repair=RepairRecord("answered", 1))
    shown = printed(show_purification(lived(answered)))
    assert "the lookahead answered without a call · 1 attempt" in shown
    assert "before:" not in shown


def test_text_of_models_and_tools_is_printed_not_obeyed() -> None:
    nasty = "[bold red]x[/] [/] \x1b[2J \x07 :smile: [link=http://a]"
    shown_as = nasty.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    turn = attempt(nasty, f"print('{nasty}')", "error", nasty)
    repaired = replace(turn, abandoned=(turn,), repair=RepairRecord("unrepaired", 1, reason=nasty))
    trajectory = replace(lived(turn, repaired, prompt=nasty), id=nasty, task=nasty, answer=nasty)
    for show in (show_trajectory, show_purification):
        text = printed(show(trajectory), width=400)
        assert text.count(shown_as) >= 10
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("kind", ["sampled", "spliced"])
def test_a_hermes_call_is_shown_as_its_program(kind: Kind) -> None:
    said = "so I compute it:\n"
    text = '<tool_call>\n{"name": "python", "arguments": {"code": "a = 1\\nprint(a)"}}\n</tool_call><|im_end|>'
    call = ToolCall("0.0", "python", {"code": "a = 1\nprint(a)"}, len(said))
    segments = (Segment("sampled", said), Segment(kind, text))
    turn = Turn(segments, (call,), (Observation("0.0", "", "ok"),), "call")
    lines = printed(show_trajectory(lived(turn))).splitlines()
    at = lines.index("  sampled │ so I compute it:")
    assert [line[12:] for line in lines[at:][:6]] == [
        "so I compute it:", "<tool_call> python", "a = 1", "print(a)", "</tool_call><|im_end|>", "(no output)",
    ]  # fmt: skip


def test_what_is_not_known_is_not_zero() -> None:
    shown = printed(show_trajectory(replace(lived(), reward=None, answer=None, stop="infrastructure")))
    assert "not graded · stop infrastructure · no answer" in shown
    assert "reward 0 ·" in printed(show_trajectory(replace(lived(), reward=0.0)))
    unmarked = replace(lived(), reward=1.0, answer=None, stop="answer")
    assert "reward 1 · stop answer · no marked answer" in printed(show_trajectory(unmarked))


@pytest.mark.slow
@settings(max_examples=8)
@given(trajectories())
def test_any_trajectory_can_be_shown(trajectory: Trajectory) -> None:
    for show in (show_trajectory, show_purification):
        for width in (20, 120):
            assert "trajectory t1" in printed(show(trajectory), width)
