"""Sources that ask somebody about a problem again: whom they ask, what they keep, and in whose template."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.seeds import derive
from retcon.core.types import Segment, Trajectory, Turn
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.models.remote import RemoteModel
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.tasks.types import Lesson, Task
from retcon.tools.scripted import ScriptedTool
from retcon.train.demos.engine import EngineSource
from retcon.train.demos.remote import RemoteSource
from retcon.train.demos.rolling import WRONG, LazyList, Roller, Teacher, TeacherSource
from retcon.train.demos.types import DemoBatch, Source
from teaching import Messages, teacher_at

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER)


class Grading:
    """Right is what says so."""

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=1.0 if "right" in trajectory.turns[-1].text else -1.0)


def rolling() -> Roller:
    tool = ScriptedTool({"print(5)": ("5", "ok", None), "print(6)": ("6", "ok", None)})
    sampling = SamplingParams(0.7, 0.8)
    context = RolloutContext(Teacher({}, CHAT), CHAT, {"python": tool}, RolloutLimits(4000, 4), sampling)
    grading: Any = Grading()
    return Roller(context, grading, 5)


SOLVED = {"a": 0, "b": 0, "c": 1, "d": 2, "e": 1}
"""The attempt at which each problem is solved."""
TASKS = [Task(name, f"What is {name}", name) for name in SOLVED]


@asynccontextmanager
async def opened(kind: str, keep: str = "right") -> AsyncIterator[Source]:
    """Which tries twice."""
    asked: Counter[str] = Counter()

    def said(name: str) -> str:
        asked[name] += 1
        return "It is right." if asked[name] > SOLVED[name] else "It is wrong."

    def lesson_of(task: Task) -> Lesson:
        return lambda printed, draw: (said(task.id), None)

    drawn = LazyList(iter(TASKS))
    if kind == "engine":
        engine = ScriptedEngine(TOKENIZER, lambda request_id, text, n: said(request_id.partition("/")[0]))
        yield EngineSource(drawn, rolling(), engine, into=None, tries=2, inputs={})
    elif kind == "teacher":
        yield TeacherSource(LazyList((task, lesson_of(task)) for task in TASKS), rolling(), keep, 2)
    else:
        with teacher_at(lambda messages: said(messages[-1]["content"][-1])) as server:
            model = RemoteModel("teacher", server.url, "big")
            yield RemoteSource(drawn, rolling(), model, "Compute.", 2)
            await model.close()


def stretches(kind: str, *bounds: tuple[int, int], keep: str = "right") -> list[DemoBatch]:
    async def made() -> list[DemoBatch]:
        async with opened(kind, keep) as source:
            return [await source.make(start, stop, 0) for start, stop in bounds]

    return asyncio.run(made())


@pytest.mark.parametrize("kind", ["engine", "openai", "teacher"])
def test_a_problem_is_tried_again_with_another_draw_until_it_is_solved(kind: str) -> None:
    first, last = stretches(kind, (1, 4), (4, 9))
    assert [one.id for one in first.kept] == ["b/0/0", "c/1/0"]
    assert [one.provenance.seed for one in first.kept] == [
        derive("rollout", 5, attempt, name, 0) for attempt, name in ((0, "b"), (1, "c"))
    ]
    assert (first.seen, first.rejected) == (3, {WRONG: 1})
    assert ([one.id for one in last.kept], last.seen, last.rejected) == (["e/1/0"], 1, {})


def test_a_teacher_whose_mistakes_are_kept_is_asked_once() -> None:
    (made,) = stretches("teacher", (1, 4), keep="all")
    assert [(one.id, one.reward) for one in made.kept] == [("b/0/0", 1.0), ("c/0/0", -1.0), ("d/0/0", -1.0)]
    assert (made.seen, made.rejected) == (3, {})


def test_a_model_behind_a_url_is_sent_messages_of_what_it_wrote_and_what_each_program_printed() -> None:
    said = ("First.\n```python\nprint(5)\n```\nIt is 9.", "```python\nprint(6)\n```", "It is right.")

    def reply(messages: Messages) -> str:
        return said[sum(message["content"].startswith("It printed:") for message in messages)]

    async def made(url: str) -> DemoBatch:
        model = RemoteModel("teacher", url, "big")
        task = Task("t", "Go on.", "", before=(("user", "Hi."), ("assistant", "Hello.")))
        try:
            return await RemoteSource(LazyList(iter([task])), rolling(), model, "Compute.", 1).make(0, 1, 0)
        finally:
            await model.close()

    with teacher_at(reply) as server:
        assert asyncio.run(made(server.url)).seen == 1
    body = server.asked[-1][1]
    assert (body["temperature"], body["top_p"]) == (0.7, 0.8)
    assert [(message["role"], message["content"]) for message in body["messages"]] == [
        ("system", "Compute."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Go on."),
        ("assistant", "First.\n```python\nprint(5)\n```"), ("user", "It printed:\n5"),
        ("assistant", "```python\nprint(6)\n```"), ("user", "It printed:\n6"),
    ]  # fmt: skip


def test_what_another_models_program_printed_is_rendered_in_the_learners_template() -> None:
    teacher = rolling()
    teacher = replace(teacher, context=replace(teacher.context, chat=Chat(TOKENIZER, system="Teach.")))
    engine = ScriptedEngine(TOKENIZER, ["First.\n```python\nprint(5)\n```", "It is right."])
    drawn = LazyList(iter([Task("a", "Go.", "")]))
    (one,) = asyncio.run(EngineSource(drawn, teacher, engine, Chat(TOKENIZER), 1, {}).make(0, 1, 0)).kept
    assert one.text == (
        "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\nFirst.\n```python\nprint(5)\n```<|im_end|>\n"
        "<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\nIt is right.<|im_end|>"
    )


def test_a_turn_that_its_writer_did_not_end_keeps_its_last_character_in_the_learners_template() -> None:
    """As of an engine that stops at a text and gives no token of the end."""
    words = Segment("sampled", "It is right.", tuple(TOKENIZER.encode("It is right.")))
    made = Trajectory("a/0/0", "a", (Segment("prompt", "Go."),), (Turn((words,)),))
    source = EngineSource(LazyList(iter(())), rolling(), ScriptedEngine(TOKENIZER, []), Chat(TOKENIZER), 1, {})
    told = source._for_learner(made, Task("a", "Go.", ""))
    assert told.text == "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\nIt is right.<|im_end|>"
