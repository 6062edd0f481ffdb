"""[demos]: what demonstrations are made of, and how; and what a supervised run measures besides."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pytest

from keys.acting import Lab, acts, run
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, RetconError
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.train.demos.making import demonstrations
from teaching import Messages, annotated, teacher_at

ROWS = ("task.kind=file", 'task.path="LAB/annotated.jsonl"', "task.evaluation_share=0", "rollout.max_tokens=3000",
        "rollout.max_turns=5", "sft.demonstrations=8", "sandbox.output_chars=100")  # fmt: skip
ANNOTATED = (*ROWS, "demos.kind=annotated")
OPENAI = (*ROWS, "demos.kind=openai", "demos.url=http://127.0.0.1:9/v1", "demos.model=big", "sft.demonstrations=1")
NUMBERS = ("rollout.max_tokens=2000", "rollout.max_turns=6", "sft.demonstrations=8")
TRANSCRIPTS = ("demos.kind=transcripts", "demos.path=LAB/said.jsonl", "rollout.max_tokens=2000")


def said(asked: str, answered: str, reward: int) -> dict[str, object]:
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return {"messages": messages, "reward": reward}


def shown(recipe: Recipe, lab: Lab) -> list[Trajectory]:
    """The demonstrations; those of problems are of eight annotated ones."""
    (lab.folder / "annotated.jsonl").write_text("".join(json.dumps(r) + "\n" for r in annotated(8)), encoding="utf-8")
    for name, rewards in (("said", (1, 0, 1)), ("heard", (0, 0))):
        rows = [said(f"{n}?", name, reward) for n, reward in enumerate(rewards)]
        (lab.folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return run(demonstrations(recipe, Chat(ByteTokenizer())))


@acts("demos.kind", ("teacher", "find x."), ("annotated", "```pyth"), given=ROWS)
def first_words_of_a_demonstration(recipe: Recipe, lab: Lab) -> str:
    if recipe.demos.kind == "teacher":
        recipe = recipe.model_copy(update={"task": Recipe().task})
    return shown(recipe, lab)[0].turns[0].text[:7]


@acts("demos.failed_share", ("any", 0), (0.5, 4), (1.0, 8), given=ANNOTATED)
def demonstrations_with_a_failed_call(recipe: Recipe, lab: Lab) -> int:
    return sum(t.failures > 0 for t in shown(recipe, lab))


@acts("demos.failed_twice_share", (0.0, 0), (0.5, 4), given=(*ANNOTATED, "demos.failed_share=1.0"))
def demonstrations_with_two_failed_calls(recipe: Recipe, lab: Lab) -> int:
    return sum(t.failures > 1 for t in shown(recipe, lab))


@acts(
    "demos.reasoning",
    ("comments", (False, True)),
    ("before", (True, False)),
    ("none", (False, False)),
    given=ANNOTATED,
)
def where_sentences_stand(recipe: Recipe, lab: Lab) -> tuple[bool, bool]:
    before, _, code = shown(recipe, lab)[0].turns[0].text.partition("```")
    return "jars" in before, "jars" in code


@acts("demos.answer", ("\\boxed{{answer}}", "\\boxed{"), ("So \\boxed{{answer}}", "So \\boxed{"), given=ANNOTATED)
def how_the_last_turn_begins(recipe: Recipe, lab: Lab) -> str:
    text = shown(recipe, lab)[0].turns[-1].text
    return text[: next(n for n, letter in enumerate(text) if letter.isdigit())]


@acts("demos.keep", ("all", True), ("right", False), given=(*NUMBERS, "sft.demonstrations=12"))
def wrong_answers_are_kept(recipe: Recipe, lab: Lab) -> bool:
    return any((t.reward or 0) < 0 for t in shown(recipe, lab))


@acts("demos.tries", (1, {"0"}), (6, {"0", "more"}), given=(*NUMBERS, "sft.demonstrations=12", "demos.keep=right"))
def attempts_that_are_kept(recipe: Recipe, lab: Lab) -> set[str]:
    return {"0" if t.id.split("/")[-2] == "0" else "more" for t in shown(recipe, lab)}


@acts("demos.path", ("LAB/said.jsonl", ["said"] * 3), ("LAB/heard.jsonl", ["heard"] * 2), given=TRANSCRIPTS)
def transcripts_that_are_read(recipe: Recipe, lab: Lab) -> list[str]:
    return [t.turns[0].text.removesuffix("<|im_end|>") for t in shown(recipe, lab)]


def asked(recipe: Recipe, lab: Lab) -> list[tuple[str, str, Messages]]:
    """Of each request, at whatever server: authorization, model, messages."""

    def reply(messages: Messages) -> str:
        return "\\boxed{1}"

    with teacher_at(reply) as server:
        about = recipe.demos.model_copy(update={"url": server.url})
        with pytest.raises(RecipeError, match="none of 8 candidates is kept"):
            shown(recipe.model_copy(update={"demos": about}), lab)
        return [(authorization, body["model"], body["messages"]) for authorization, body in server.asked]


@acts("demos.model", ("big", {"big"}), ("small", {"small"}), given=OPENAI)
def teacher_that_is_asked(recipe: Recipe, lab: Lab) -> set[str]:
    return {model for _, model, _ in asked(recipe, lab)}


@acts("demos.key_env", ("", {""}), ("KEY_OF_TESTS", {"Bearer lab"}), given=OPENAI)
def what_a_request_is_authorised_by(recipe: Recipe, lab: Lab) -> set[str]:
    os.environ["KEY_OF_TESTS"] = "lab"
    return {authorization for authorization, _, _ in asked(recipe, lab)}


@acts("demos.instructions", ("Be right.", "Be right."), ("Be kind.", "Be kind."), given=OPENAI)
def what_a_teacher_is_told_first(recipe: Recipe, lab: Lab) -> str:
    return asked(recipe, lab)[-1][2][0]["content"]


@acts("demos.url", ("", "empty"), ("http://127.0.0.1:9/v1", "down"), given=OPENAI)
def where_a_teacher_is(recipe: Recipe, lab: Lab) -> str:
    try:
        shown(recipe, lab)
    except RetconError as error:
        return (
            "empty" if "it is empty" in str(error) else "down" if "does not answer: ClientConnect" in str(error) else ""
        )
    return "there"


CALL, ANSWER = "It is \\boxed{87}:\n```python\nprint(87)\n```", "So \\boxed{87}."


@acts(
    "demos.style",
    ("auto", 1),
    ("hermes", 0),
    given=(*ROWS, "demos.kind=engine", "demos.model=base", "engine.kind=scripted", "sft.demonstrations=1",
           f"engine.replies={json.dumps([CALL, ANSWER])}"),
)  # fmt: skip
def calls_of_a_teacher(recipe: Recipe, lab: Lab) -> int:
    """A block of Python is a call in the packaged model's own style, and words in the other."""
    return shown(recipe, lab)[0].calls


@acts("demos.seconds", (0.001, True), (60.0, False), given=OPENAI)
def a_slow_teacher_is_given_up(recipe: Recipe, lab: Lab) -> bool:
    from threading import Event

    released = Event()

    def reply(messages: Messages) -> str:
        if recipe.demos.seconds < 1:  # type: ignore[attr-defined]
            released.wait(30)
        return "\\boxed{1}"

    with teacher_at(reply) as server:
        try:
            shown(recipe.model_copy(update={"demos": recipe.demos.model_copy(update={"url": server.url})}), lab)
        except RetconError as error:
            return "does not answer" in str(error)
        finally:
            released.set()
    return False


@acts("demos.patience", (0, "1/0"), (30, "0/0"), given=OPENAI)
def try_that_a_teacher_answers_who_goes_away_for_four_requests(recipe: Recipe, lab: Lab) -> str:
    count = itertools.count()

    def reply(messages: Messages) -> str | int:
        if 1 <= next(count) <= 4:
            return 503
        numbers = [int(n) for n in re.findall(r"\d+", messages[-1]["content"])]
        return f"\\boxed{{{(numbers[0] // 2 + numbers[2]) * 3 if numbers else 'yes'}}}"

    with teacher_at(reply) as server:
        (made,) = shown(recipe.model_copy(update={"demos": recipe.demos.model_copy(update={"url": server.url})}), lab)
    return made.id[-3:]


def learnt(recipe: Recipe, lab: Lab) -> tuple[Path, list[dict[str, float]]]:
    return lab.supervised(recipe)


@acts("sft.validation_share", (0.0, 0), (0.3, 1), given=["sft.steps=2"])
def validations(recipe: Recipe, lab: Lab) -> int:
    return sum("validation_loss" in line for line in learnt(recipe, lab)[1])


@acts("sft.validate_every", (1, [1, 2, 3]), (2, [2, 3]), given=["sft.steps=3", "sft.validation_share=0.3"])
def steps_with_a_validation(recipe: Recipe, lab: Lab) -> list[int]:
    return [int(line["step"]) for line in learnt(recipe, lab)[1] if "validation_loss" in line]


@acts("sft.samples", (0, 0), (3, 3), given=["rollout.max_tokens=160"])
def rollouts_of_the_final_model(recipe: Recipe, lab: Lab) -> int:
    folder = learnt(recipe, lab)[0] / "trajectories"
    return sum(len(list(jsonl.read(file))) for file in folder.glob("step-000001.jsonl*"))


@acts("sft.first_repair", (0, False), (1, True), given=["sft.steps=2", "rollout.max_tokens=160"])
def rollouts_on_the_way(recipe: Recipe, lab: Lab) -> bool:
    return any((learnt(recipe, lab)[0] / "trajectories").glob("step-000001.jsonl*"))
