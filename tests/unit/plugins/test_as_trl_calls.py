"""What a user's class and reward functions for TRL are given, and what comes of what they raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from playing import LIMITS
from retcon.chat.chat import Chat
from retcon.chat.families.hermes import render_call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.tasks.environments.tasks import Sessions
from retcon.tasks.kinds.trl import Factory, MethodEnvironment
from retcon.tasks.types import Task

pytestmark = pytest.mark.torch  # transformers makes the schemas of tools
ADD = render_call("add", {"amount": 5})
given: list[dict[str, Any]] = []


class Sums:
    def reset(self, **row: Any) -> None:
        self.value = 0

    def add(self, amount: int | None = None) -> int:
        """Adds to the sum.

        Args:
            amount: how much, 1 where nothing
        """
        if amount == 13:
            raise SystemExit(2)
        self.value += 1 if amount is None else amount
        return self.value

    def get_reward(self) -> float:
        return 0.0


class Broken(Sums):
    def reset(self, **row: Any) -> None:
        raise KeyError("level")


class Unmade(Sums):
    def __init__(self) -> None:
        raise OSError("no board")


class Hinted(Sums):
    def take(self, amount: Unknown) -> int:  # type: ignore[name-defined]  # noqa: F821  # as under TYPE_CHECKING
        """Takes from the sum.

        Args:
            amount: how much
        """
        return 0


class Awaited(Sums):
    async def reset(self, **row: Any) -> None:  # type: ignore[override]
        self.value = 0


def looks(
    prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], log_extra: Any, log_metric: Any,
    solution: list[str], environments: list[Sums], **more: Any,
) -> list[float]:  # fmt: skip
    log_extra("solution", solution)
    log_metric("sums", 1.0)
    given.append({"prompt": prompts[0], "completion": completions[0], "ids": completion_ids[0], **more})
    return [float(call["function"]["arguments"]["amount"]) for call in completions[0][0]["tool_calls"]]


class Unjudged(Sums):
    def get_reward(self) -> None:  # type: ignore[override]
        return None


def nothing(completions: list[Any], **_: Any) -> list[None]:
    return [None]


def half(completions: list[Any], **_: Any) -> list[float]:
    return [0.5]


def rolled(environment: MethodEnvironment) -> tuple[Task, Trajectory, Any]:
    async def once() -> tuple[Task, Trajectory, Any]:
        sessions = Sessions(environment, environment.rollback)
        tokenizer, (task,) = ByteTokenizer(), environment.tasks("train")
        engine = ScriptedEngine(tokenizer, [ADD, "5"])
        tools = {tool.name: tool for tool in sessions.tools(200)}
        context = RolloutContext(engine, Chat(tokenizer, style="hermes"), tools, LIMITS)
        made = await run_rollout(task, context, id="a", seed=0)
        return task, made, await environment.reward(task, made, await sessions.take_final(task.id, "a"))

    return asyncio.run(once())


@pytest.mark.slow
def test_reward_functions_get_what_trl_gives_them() -> None:
    given.clear()
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 5."}]
    row = {"prompt": prompt, "solution": "5", "completion": "of nobody's"}
    _, made, reward = rolled(MethodEnvironment(Factory(f"{__name__}:Sums", rewards=[f"{__name__}:looks"]), [row]))
    assert reward == (5.0, "5")
    assert given[0]["prompt"] == prompt
    asked, told, last = given[0]["completion"]
    assert asked["tool_calls"][0]["function"] == {"name": "add", "arguments": {"amount": 5}}
    assert (told["name"], told["content"], last["content"]) == ("add", "5", "5")
    assert ByteTokenizer().decode(given[0]["ids"]) == "".join(s.text for turn in made.turns for s in turn.segments)
    assert "completion" not in set(given[0]) - {"prompt", "completion", "ids"}


def test_a_rollout_that_no_reward_judges_has_none_and_one_that_some_judge_has_theirs() -> None:
    rows, path = [{"prompt": "add"}], f"{__name__}:Unjudged"
    with pytest.raises(InfrastructureFault, match="has no reward"):
        rolled(MethodEnvironment(Factory(path, rewards=[f"{__name__}:nothing"]), rows))
    rewards = [f"{__name__}:nothing", f"{__name__}:half"]
    assert rolled(MethodEnvironment(Factory(path, rewards=rewards), rows))[2] == (0.5, "5")


@pytest.mark.parametrize(
    ("kind", "said"),
    [("Broken", "Broken, reset with .'prompt': 'add'., raised KeyError: 'level'"), ("Unmade", "raised OSError: no bo"),
     ("Hinted", "Hinted raised NameError: name 'Unknown' is not defined"), ("Awaited", "Awaited.reset is `async def`")],
)  # fmt: skip
def test_a_class_that_cannot_begin_is_refused_before_work_starts(kind: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        MethodEnvironment(Factory(f"{__name__}:{kind}"), [{"prompt": "add"}]).tasks("train")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "neither a text nor a list of messages: None"),
        ({"role": "user", "content": "add"}, "neither a text nor a list of messages: .'role'"),
        (["add"], "neither a text nor a list of messages: .'add'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "a message of the user is not text"),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_its_row(prompt: Any, said: str) -> None:
    environment = MethodEnvironment(Factory(f"{__name__}:Sums"), [{"prompt": "add"}, {"prompt": prompt}])
    with pytest.raises(RecipeError, match=f"row 1 of Sums: .*{said}"):
        environment.tasks("train")
