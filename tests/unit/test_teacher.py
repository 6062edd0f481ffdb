"""A teacher as an engine: what it is told, its random stream, and the room that it has."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import EngineError
from retcon.core.types import Stop, Trajectory
from retcon.engine.types import Generation, SamplingParams
from retcon.train.demos.rolling import TOO_LONG, UNANSWERED, WRONG, Teacher, why_rejected
from retcon.train.demos.types import LOST

CHAT = Chat(ByteTokenizer())


def lesson(printed: Sequence[str], draw: random.Random) -> tuple[str, str | None]:
    return f"{len(printed)} outputs, draw {draw.random()}", None


def taught(request_id: str = "a", *, seed: int = 0, max_tokens: int = 200) -> Generation:
    teacher = Teacher({"a": lesson, "b": lambda *_: ("", "print(1)")}, CHAT)
    params = SamplingParams(max_tokens=max_tokens, seed=seed)
    return asyncio.run(teacher.generate(request_id, ByteTokenizer().encode("go"), params))


def test_what_is_drawn_hangs_on_the_seed_of_the_generation():
    assert taught(seed=1) == taught(seed=1)
    assert taught(seed=1).ids != taught(seed=2).ids


def test_each_request_has_its_own_lesson():
    assert "draw" in ByteTokenizer().decode(taught("a").ids)
    assert "print(1)" in ByteTokenizer().decode(taught("b").ids)


def test_a_lesson_calls_python_by_its_name():
    chat = Chat(ByteTokenizer(), style="hermes")
    written = asyncio.run(Teacher({"b": lambda *_: ("So: ", "print(1)")}, chat).generate("b", [], SamplingParams())).ids
    (call,) = chat.parse(written, prefix="0").calls
    assert (call.name, call.code) == ("python", "print(1)")


def test_a_lesson_ends_where_its_room_does():
    whole = taught()
    assert whole.stop == "stop"
    length = len(whole.ids)
    assert taught(max_tokens=length) == whole
    cut = taught(max_tokens=length - 1)
    assert (cut.ids, cut.stop) == (whole.ids[:-1], "length")


def test_a_teacher_has_no_probabilities():
    assert taught().logprobs is None
    with pytest.raises(EngineError, match="no probabilities"):
        asyncio.run(Teacher({}, CHAT).score("a", [1, 2], 1))


@pytest.mark.parametrize(
    ("stop", "reward", "why"),
    [
        ("answer", 1.0, None), ("answer", 0.0, WRONG), ("answer", -1.0, WRONG), ("turns", 1.0, UNANSWERED),
        ("length", 1.0, TOO_LONG), ("infrastructure", None, LOST),
    ],
)  # fmt: skip
def test_a_demonstration_is_rejected_by_how_it_ended_and_then_by_its_reward(
    stop: Stop, reward: float | None, why: str | None
) -> None:
    assert why_rejected(Trajectory("t", "t", (), (), reward=reward, stop=stop)) == why
