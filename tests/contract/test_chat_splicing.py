"""A failed call is replaced by its fix in every family, by ids: what is committed reads as the model would write it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from conversing import NAMES, TOOLS, chat_of, ids_of
from playing import TASK
from retcon.engine.types import Generation, SamplingParams
from retcon.purify.kinds.describe import Describe
from retcon.purify.saar import Saar
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tools.scripted import ScriptedTool


class Replies:
    """Engine that gives one reply after the other, as ids, and remembers what it was shown."""

    def __init__(self, *replies: Sequence[int]) -> None:
        self.replies = [tuple(ids) for ids in replies]
        self.seen: list[list[int]] = []

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.seen.append(list(ids))
        reply = self.replies[len(self.seen) - 1]
        return Generation(reply, (0.0,) * len(reply), "stop")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("gamma", "words"), [(0.0, "I try."), (1.0, "Better.")])
def test_a_fix_takes_the_place_of_the_failure(name: str, gamma: float, words: str) -> None:
    """Shallow: the first words and the second call; deep: all of the second."""
    chat = chat_of(name, None)
    bad, good = ([("python", {"code": code})] for code in ("print(a)", "print(1)"))
    failure, fix, answer = (
        chat.render_turn("I try.", bad),
        chat.render_turn("Better.", good),
        chat.render_turn("It is 1."),
    )
    engine = Replies(failure.ids, fix.ids, answer.ids)
    answers = {"print(1)": ("1", "ok", None), "print(a)": ("no a", "error", "NameError")}
    tool = ScriptedTool(lambda code: answers[code.strip()], spec=TOOLS[0])
    made = asyncio.run(
        run_rollout(
            TASK,
            RolloutContext(
                engine, chat, {"python": tool}, RolloutLimits(10_000, 6, 10_000), SamplingParams(max_tokens=5000),
                Saar(gamma=gamma),
            ),
            id="t",
            seed=0,
        )
    )  # fmt: skip
    turn = made.turns[0]
    assert turn.repair is not None
    assert turn.repair.decision == ("shallow" if gamma == 0 else "deep")
    written = chat.render_turn(words, good)
    assert turn.text == written.text
    assert ids_of(turn.generated) == list(written.ids)
    assert [call.code.strip() for call in turn.calls] == ["print(1)"]
    assert "no a" not in chat.tokenizer.decode(engine.seen[2])
    assert engine.seen[2] == ids_of([*made.prompt, *turn.segments])


@pytest.mark.parametrize("name", NAMES)
def test_a_line_takes_the_place_of_the_failure(name: str) -> None:
    """The words before the call stay, the turn is closed as the family closes it, and the line is what a tool said."""
    chat = chat_of(name, None)
    bad, good = ([("python", {"code": code})] for code in ("print(a)", "print(1)"))
    failure, fix, answer = (
        chat.render_turn("I try.", bad),
        chat.render_turn("Better.", good),
        chat.render_turn("It is 1."),
    )
    engine = Replies(failure.ids, fix.ids, answer.ids)
    answers = {"print(1)": ("1", "ok", None), "print(a)": ("NameError: no a", "error", "NameError")}
    tool = ScriptedTool(lambda code: answers[code.strip()], spec=TOOLS[0])
    context = RolloutContext(
        engine, chat, {"python": tool}, RolloutLimits(10_000, 6), SamplingParams(max_tokens=5000), Describe()
    )
    made = asyncio.run(run_rollout(TASK, context, id="t", seed=0))
    turn, *_ = made.turns
    assert turn.repair is not None
    assert turn.repair.decision == "described"
    assert ids_of(turn.generated) == list(failure.ids)[: len(ids_of(turn.generated))]
    assert "I try." in turn.text
    shown = chat.tokenizer.decode(engine.seen[1])
    assert engine.seen[1] == ids_of([*made.prompt, *turn.segments])
    assert "print(a)" not in shown
    opened = chat.tokenizer.decode(ids_of(made.prompt))
    closed = shown.removeprefix(opened + turn.text)
    ended = turn.text.endswith(chat.family.closes)
    assert closed.startswith(chat.family.ends[0]) != ended, "the turn is closed before its observation, and once"
    assert "[python failed: NameError: no a]" in closed


@pytest.mark.parametrize("name", NAMES)
def test_what_stays_before_a_line_is_whole(name: str) -> None:
    """Of two calls of a turn the second fails: what stays is the first, as the family writes it alone, or all."""
    chat = chat_of(name, None)
    wrote = chat.render_turn("I try.", [("python", {"code": "print(1)"}), ("python", {"code": "print(a)"})])
    engine = Replies(wrote.ids or (), chat.render_turn("It is 1.").ids or ())
    answers = {"print(1)": ("1", "ok", None), "print(a)": ("NameError: no a", "error", "NameError")}
    tool = ScriptedTool(lambda code: answers[code.strip()], spec=TOOLS[0])
    context = RolloutContext(
        engine, chat, {"python": tool}, RolloutLimits(10_000, 6), SamplingParams(max_tokens=5000), Describe()
    )
    turn = asyncio.run(run_rollout(TASK, context, id="t", seed=0)).turns[0]
    assert turn.repair is not None
    if turn.repair.decision == "unrepaired":
        assert turn.text == wrote.text
        return
    assert turn.repair.decision == "described"
    closed = turn.text if turn.text.endswith(chat.family.closes) else turn.text + chat.family.ends[0]
    assert [(c.code.strip(), c.malformed) for c in chat.parse_text(closed, prefix="t").calls] == [("print(1)", False)]


def test_a_turn_is_not_cut_within_its_list_of_calls() -> None:
    chat = chat_of("listed", None)
    first, second = chat.parse(chat.render_turn("I try.", [("python", {})] * 2).ids or (), prefix="t").calls
    assert first.start is not None
    assert second.start is None


@pytest.mark.parametrize("repair", [None, Saar(gamma=0.0), Saar(gamma=1.0)])
def test_an_answer_names_the_call_as_the_model_labelled_it(repair: Repair | None) -> None:
    """Where a call has an id that the model makes up."""
    chat = chat_of("listed", None)

    def said(words: str, code: str | None, label: str) -> tuple[int, ...]:
        text = chat.render_turn(words, [] if code is None else [("python", {"code": code})]).text.removesuffix("</s>")
        ids = chat.tokenizer.encode(text.replace("retcon000", label), special=True)
        return (*ids, chat.tokenizer.special_id("</s>"))

    engine = Replies(said("I try.", "print(a)", "abcdefghi"), said("", "print(1)", "jklmnopqr"), said("1.", None, ""))
    answers = {"print(1)": ("1", "ok", None), "print(a)": ("NameError: a", "error", "NameError")}
    tool = ScriptedTool(lambda code: answers[code.strip()], spec=TOOLS[0])
    limits = RolloutLimits(10_000, 6, 10_000)
    context = RolloutContext(engine, chat, {"python": tool}, limits, SamplingParams(max_tokens=5000), repair)
    made = asyncio.run(run_rollout(TASK, context, id="t", seed=0))
    assert made.stop == "answer"
    history = chat.tokenizer.decode(engine.seen[-1])
    assert re.findall(r'"call_id": "(\w+)"', history) == ["abcdefghi", "jklmnopqr"][repair is not None :]
