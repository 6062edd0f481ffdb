"""[task] of environments: what they are made of, what their tools do, and what becomes of their rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from keys.acting import Lab, acts, run
from retcon.build import build_tasks, build_tools
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import ToolCall, Trajectory, Turn
from retcon.tasks.types import Task
from servers.openenv import playing

ROWS = ("task.seeds=4", "task.evaluation_share=0")
OWN = ('task.kind="trl"', 'task.environment="keys.environments:Gate"', *ROWS)
THEIRS = ('task.kind="openenv"', *ROWS)


class Gate:
    """Opens to a word."""

    def __init__(self, word: str = "please") -> None:
        self.word, self.open = word, False

    def reset(self, seed: int) -> str:
        return f"Gate {seed}"

    def say(self, word: str) -> str:
        """Says something to the gate.

        Args:
            word: what
        """
        if word == "fall":
            raise LookupError("it fell down")
        self.open = self.open or word == self.word
        return "open" if self.open else "closed"

    def get_reward(self) -> float:
        return 0.5


class Door(Gate):
    def reset(self, seed: int) -> str:
        return f"Door {seed}"


def thrice(completions: list[Any], **_: Any) -> list[float]:
    return [3.0] * len(completions)


def first(recipe: Recipe) -> Task:
    return min(build_tasks(recipe).train(0), key=lambda task: task.question)


def said(recipe: Recipe, *words: str) -> list[str]:
    """Status and text of what a tool answers."""

    async def told() -> list[str]:
        tool: Any = build_tools(recipe, None)["say"]  # type: ignore[arg-type]  # it runs in no sandbox
        opened = await tool.of(first(recipe).id, "one").open("one") if hasattr(tool, "of") else tool
        answers = [await opened(ToolCall("c", "say", {"word": word}, 0)) for word in words]
        return [f"{one.status}: {one.text}" for one in answers]

    found: list[str] = run(told())
    return found


@acts("task.environment", ("keys.environments:Gate", "Gate 0"), ("keys.environments:Door", "Door 0"), given=OWN)
def what_the_model_is_asked(recipe: Recipe, lab: Lab) -> str:
    return first(recipe).question


@acts("task.arguments", ({}, ["ok: closed"]), ({"word": "sesame"}, ["ok: open"]), given=OWN)
def what_the_environment_is_made_with(recipe: Recipe, lab: Lab) -> list[str]:
    return said(recipe, "sesame")


@acts("task.seeds", (2, 2), (5, 5), given=OWN)
def how_many_tasks_there_are(recipe: Recipe, lab: Lab) -> int:
    return len(list(build_tasks(recipe).train(0)))


@acts(
    "task.faults", (["ConnectionError"], ["error: {'error': 'it fell down'}"]),
    (["LookupError"], ["infrastructure: the environment: LookupError: it fell down"]),
    given=(*OWN, "sandbox.output_chars=2000"),
)  # fmt: skip
def whose_fault_an_exception_is(recipe: Recipe, lab: Lab) -> list[str]:
    return said(recipe, "fall")


@acts("task.rollback", ("copy", True), ("impossible", False), given=(*OWN, "repair.kind=saar"))
def whether_a_repair_is_possible(recipe: Recipe, lab: Lab) -> bool:
    try:
        recipe.task.check_rollouts(recipe)
    except RecipeError:
        return False
    return True


def reward(recipe: Recipe) -> float | None:
    tasks, task = build_tasks(recipe), first(recipe)
    graded = tasks.grade(task, Trajectory("t", task.id, (), (Turn(()),)))
    assert isinstance(graded, Awaitable)
    return asyncio.run(_awaited(graded)).reward


async def _awaited(graded: Awaitable[Trajectory]) -> Trajectory:
    return await graded


@acts("task.right_from", (0.0, 0.5), (0.5, 1.0), (0.75, -1.0), given=OWN)
def what_the_reward_becomes(recipe: Recipe, lab: Lab) -> float | None:
    return reward(recipe)


@acts("task.reward_functions", ([], 0.5), (["keys.environments:thrice"], 3.5), given=OWN)
def what_is_rewarded(recipe: Recipe, lab: Lab) -> float | None:
    return reward(recipe)


@acts("task.url", ("http://127.0.0.1:1", ":1"), ("http://127.0.0.1:7", ":7"), given=THEIRS)
def which_server_is_asked(recipe: Recipe, lab: Lab) -> str:
    try:
        build_tasks(recipe)
    except RecipeError as error:
        return str(error).partition("answers at http://127.0.0.1")[2][:2]
    return "one that answers"


def at(recipe: Recipe, url: str) -> Recipe:
    return recipe.model_copy(update={"task": recipe.task.model_copy(update={"url": url})})


@acts("task.prompt", ("", '{"at": 0}'), ("Walk. ", 'Walk. {"at": 0}'), given=THEIRS)
def what_stands_before_the_first_observation(recipe: Recipe, lab: Lab) -> str:
    with playing() as url:
        return first(at(recipe, url)).question


@acts("task.failed", ("", "ok"), ("blocked", "error"), given=THEIRS)
def whether_an_observation_is_a_failure(recipe: Recipe, lab: Lab) -> str:
    async def status(recipe: Recipe) -> str:
        tool: Any = build_tools(recipe, None)["step"]  # type: ignore[arg-type]
        opened = await tool.of(first(recipe).id, "one").open("one")
        told = await opened(ToolCall("c", "step", {"by": -1}, 0))
        await opened.close()
        return str(told.status)

    with playing() as url:
        found: str = run(status(at(recipe, url)))
        return found
