"""Describe: a line in place of a failed call, in a history that is on-policy. Over the scripted engine."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from playing import CALL, Play, call, play, run_python, written
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.codec import from_dict, to_dict
from retcon.core.types import Observation, RepairRecord, Segment, Status, ToolCall, history_ids, to_sample
from retcon.purify.kinds.describe import LATER, Describe, describe_failure
from retcon.purify.splice import UNALIGNED
from retcon.report.transcript import changes, show_change, show_purification
from retcon.tools.scripted import ScriptedSessions

BAD, GOOD = "print(6 * valu)", "print(6 * value)"
DONE = "It is 42."
SAYS = "name 'valu' is not defined"
FAILS = {BAD: (f"Traceback\n  line 1\nNameError: {SAYS}", "error", "NameError")}
LINE = f"[python failed: NameError: {SAYS}]"


class Joining(ByteTokenizer):
    """Bytes, but for a space before a call's first character, which is one token with it."""

    JOINED = (" `", " <")

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        for n, pair in enumerate(self.JOINED):
            text = text.replace(pair, chr(0xE000 + n))
        private = {tuple(chr(0xE000 + n).encode()): 50_000 + n for n in range(len(self.JOINED))}
        ids, joined = super().encode(text, special=special), []
        while ids:
            one = private.get(tuple(ids[:3]))
            joined.append(ids[0] if one is None else one)
            del ids[: 1 if one is None else 3]
        return joined

    def decode(self, ids: Sequence[int]) -> str:
        plain = [j for i in ids for j in (self.JOINED[i - 50_000].encode() if i >= 50_000 else (i,))]
        return super().decode(plain)


def told(replies: list[str], **how: object) -> Play:
    return play(replies, FAILS, repair=Describe(), **how)


def test_the_failure_stays_as_a_line_after_the_reasoning_as_it_was_sampled():
    p = told([call(BAD, "First. "), call(GOOD, "So. "), DONE])
    turn = p.turns[0]
    assert p.texts == ["First. ", call(GOOD, "So. "), DONE]
    assert (turn.repair.decision, turn.repair.attempts, turn.repair.reason) == ("described", 0, "")
    assert [o.text for o in turn.observations] == [LINE]
    assert [(c.char, c.start) for c in turn.calls] == [(len("First. "), len(turn.generated[0].ids))]  # what is kept
    assert [written(a) for a in turn.abandoned] == [call(BAD, "First. ")]
    assert (p.trajectory.failures, p.trajectory.raw_failures, p.trajectory.raw_calls) == (1, 1, 2)


def test_the_rollout_goes_on_from_the_described_history():
    p = told([call(BAD, "First. "), call(GOOD), DONE])
    assert len(p.engine.seen) == 3  # nothing is sampled besides
    told_so = p.prompt(0) + f"First. <|im_end|>\n<|im_start|>tool\n{LINE}<|im_end|>\n<|im_start|>assistant\n"
    assert p.prompt(1) == told_so
    assert history_ids(p.trajectory)[: len(p.engine.seen[1][1])] == tuple(p.engine.seen[1][1])
    assert BAD not in p.trajectory.text


def test_only_what_was_sampled_is_learnt_with_the_log_probs_that_it_was_sampled_with():
    p = told([call(BAD, "First. "), DONE])
    sample, failure = to_sample(p.trajectory), p.turns[0].abandoned[0]
    learnt = [i for i, m in zip(sample.ids, sample.mask, strict=True) if m]
    assert ByteTokenizer().decode(learnt) == f"First. {DONE}<|im_end|>"
    kept = p.turns[0].generated[0]
    assert kept.logprobs == failure.generated[0].logprobs[: len(kept.ids)]
    assert p.engine.scored == []
    assert sample.spliced == (0,) * len(sample.ids)


def test_a_failure_without_words_before_it_leaves_an_empty_turn():
    p = told([call(BAD), DONE])
    assert p.texts == ["", DONE]
    assert p.turns[0].generated == ()
    assert p.prompt(1).endswith(f"<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n{LINE}<|im_end|>\n"
                                "<|im_start|>assistant\n")  # fmt: skip


def test_it_is_shown_and_kept_as_it_is():
    p = told([call(BAD, "First. "), DONE])
    assert from_dict(to_dict(p.trajectory), "here") == p.trajectory
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(show_purification(p.trajectory))
    for change in changes(p.trajectory):
        console.print(show_change(change))
    shown = console.export_text()
    assert "described: a line in place of the failed call" in shown
    assert shown.count(BAD) == 2
    assert LINE in shown


def test_a_failure_after_a_failure_has_a_line_of_its_own():
    p = told([call(BAD, "A. "), call(BAD, "B. "), call(GOOD, "C. "), DONE])
    assert [t.repair.decision if t.repair else None for t in p.turns] == ["described", "described", None, None]
    assert p.trajectory.text.count(LINE) == 2


def test_a_call_in_the_middle_of_a_token_takes_the_words_along():
    p = told([call(BAD, "First. "), DONE], tokenizer=Joining())
    turn = p.turns[0]
    assert (turn.generated, turn.repair.decision, turn.repair.reason) == ((), "described", UNALIGNED)
    assert BAD not in p.trajectory.text


def test_a_call_that_succeeded_is_not_taken_along():
    both = CALL["hermes"](GOOD) + CALL["hermes"](BAD, " ")
    p = told([both, DONE], tokenizer=Joining(), style="hermes")
    assert (p.turns[0].repair.decision, p.turns[0].repair.reason) == ("unrepaired", UNALIGNED)
    assert BAD in p.trajectory.text


@pytest.mark.parametrize("style", ["markdown", "hermes"])
def test_calls_before_the_failed_one_stay(style):
    both = CALL[style](GOOD, "Both. ") + "\n" + CALL[style](BAD, "Then: ")
    p = told([both, DONE], style=style)
    turn = p.turns[0]
    assert [o.status for o in turn.observations] == ["ok", "error"]
    assert [o.text for o in turn.observations] == ["<ok>", LINE]
    assert GOOD in turn.text
    assert BAD not in turn.text
    assert turn.calls[0] == turn.abandoned[0].calls[0]


def test_a_turn_without_ids_is_described_by_its_characters():
    """As in other people's transcripts: their segments hold text only, and nothing is known of tokens."""
    both = CALL["hermes"](GOOD, "Both. ") + CALL["hermes"](BAD, " Then: ")
    turn = play([both, DONE], FAILS, style="hermes").turns[0]
    bare = replace(
        turn,
        segments=tuple(replace(s, ids=None, logprobs=None) for s in turn.segments),
        calls=tuple(replace(c, start=None) for c in turn.calls),
    )

    class Telling:
        def render_observations(
            self, written: Sequence[Segment], calls: Sequence[ToolCall], observations: Sequence[Observation]
        ):
            return (Segment("observation", "".join(o.text for o in observations)),)

    (described,) = asyncio.run(Describe().repair(bare, Telling()))
    assert described.repair.decision == "described"
    kept = described.generated[0].text
    assert kept == CALL["hermes"](GOOD, "Both. ") + " Then: "
    assert [(c.arguments, c.char, c.start) for c in described.calls[1:]] == [({}, len(kept), None)]
    assert described.calls[0] == bare.calls[0]


def test_all_failed_calls_of_a_turn_stand_where_it_was_cut():
    both = CALL["hermes"](BAD, "Both. ") + "\n" + CALL["hermes"](BAD, "Then: ")
    turn = told([both, DONE], style="hermes").turns[0]
    assert [(c.arguments, c.char, c.start) for c in turn.calls] == [({}, 6, 6)] * 2


def test_a_call_that_cannot_be_read_is_emptied_too():
    turn = told(['So. <tool_call>\n{"name": "python", "arguments": {\n</tool_call>', DONE], style="hermes").turns[0]
    assert [(c.malformed, c.arguments, c.char) for c in turn.calls] == [(True, "", 4)]


@pytest.mark.parametrize("style", ["hermes"])
def test_where_a_later_call_of_the_turn_succeeded_the_failure_stays_as_it_happened(style):
    p = told([CALL[style](BAD, "Both. ") + CALL[style](GOOD), DONE], style=style)
    assert BAD in p.trajectory.text
    assert p.turns[0].repair == RepairRecord("unrepaired", 0, reason=LATER)


def test_the_state_is_that_which_the_failure_left():
    cells = [call("a = 5; oops"), call("a"), DONE]
    p = play(cells, tool=ScriptedSessions(run_python), repair=Describe())
    assert [o.text for o in p.turns[1].observations] == ["5"]


def test_a_status_that_does_not_count_is_left_alone():
    p = play([call(BAD), DONE], FAILS, repair=Describe(failures=frozenset({"timeout"})))
    assert p.turns[0].repair is None


@pytest.mark.parametrize(
    ("text", "status", "error_type", "line"),
    [
        (f"NameError: {SAYS}", "error", "NameError", LINE),
        ("x\nValueError: a\nb", "error", "ValueError", "[python failed: ValueError: a]"),
        ("out of memory", "limit", "MemoryError", "[python failed: MemoryError]"),
        ("TimeoutError: no end", "timeout", "TimeoutError", "[python failed: TimeoutError: no end]"),
        ("malformed call: no 'code' argument", "malformed", "MalformedCall",
         "[python failed: malformed call: no 'code' argument]"),
        ("", "error", None, "[python failed: error]"),
    ],
)  # fmt: skip
def test_the_line_says_what_failed(text: str, status: Status, error_type: str | None, line: str):
    assert describe_failure(ToolCall("0", "python", {}, 0), Observation("0", text, status, error_type), 80) == line


@given(st.text(), st.integers(1, 60))
def test_the_line_is_one_line_and_no_longer_than_asked(text, chars):
    line = describe_failure(ToolCall("0", "python", {}, 0), Observation("0", text, "malformed"), chars)
    assert len(line) <= chars
    assert len(line.splitlines()) <= 1


def test_a_line_that_just_fits_is_whole():
    name, failed = ToolCall("0", "python", {}, 0), Observation("0", f"NameError: {SAYS}", "error", "NameError")
    assert describe_failure(name, failed, len(LINE)) == LINE
    assert describe_failure(name, failed, len(LINE) - 1) == f"{LINE[:-3]}…]"
    assert [describe_failure(name, failed, chars) for chars in (1, 2, 3)] == ["…", "…]", "[…]"]


def test_a_line_has_a_character():
    assert Describe(chars=1).chars == 1
    with pytest.raises(ValueError, match="chars must be 1 or more"):
        Describe(chars=0)


def test_a_recipe_says_which_failures_are_described_and_how_long() -> None:
    recipe = load_recipe(None, ["repair.kind=describe", "repair.failures=['timeout']", "repair.chars=9"])
    assert recipe.repair.build() == Describe(9, frozenset({"timeout"}))
