"""Environments as tasks: their tools' failures are repaired, their state goes back, their faults are nobody's."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from playing import LIMITS
from retcon.build import build_evaluation_context, build_repair, build_tasks, build_tools
from retcon.chat.chat import Chat
from retcon.chat.families.hermes import render_call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_member
from retcon.rollout.loop import run_rollout
from retcon.tasks.environments.types import completion_messages
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool

OTHER = ScriptedTool(lambda code: ("", "ok", None), name="add")
pytestmark = pytest.mark.torch  # transformers makes the schemas of tools


class Counter:
    """Counts to a goal; what it is told beyond 100 spoils it, and is refused."""

    def reset(self, seed: int = 0, **row: Any) -> str:
        self.value, self.goal = 0, 5 + seed
        return f"Count to {self.goal}."

    def add(self, amount: int) -> int:
        """Adds to the counter.

        Args:
            amount: how much
        """
        self.value += amount
        if amount > 100:
            raise ValueError(f"{amount} is too much")
        return self.value

    async def look(self) -> dict[str, int] | dict[str, str]:
        """What the counter says."""
        if self.value > 50:
            return {"error": "it is broken"}
        return {"value": self.value}

    def get_reward(self) -> float:
        return 1.0 if self.value == self.goal else 0.0


class Dice(Counter):
    """Says something else whenever it is asked, and cannot be copied."""

    def reset(self, seed: int = 0, **row: Any) -> str:
        self.lock = threading.Lock()
        return super().reset(seed)

    def add(self, amount: int) -> float:
        """Adds to the counter.

        Args:
            amount: how much
        """
        super().add(amount)
        return random.random()


class Locked(Counter):
    """Cannot be copied."""

    def reset(self, seed: int = 0, **row: Any) -> str:
        self.lock = threading.Lock()
        return super().reset(seed)


class Moody(Counter):
    """Begins otherwise each time."""

    def reset(self, seed: int = 0, **row: Any) -> str:
        return f"{random.random()}"


class Down(Counter):
    def add(self, amount: int) -> int:
        """Adds to the counter.

        Args:
            amount: how much
        """
        raise ConnectionResetError("the counter is gone")


class Unsteady(Counter):
    """Is away now and then."""

    away = False

    def reset(self, seed: int = 0, **row: Any) -> str:
        if self.away:
            raise LookupError("the counter is away")
        return super().reset(seed)


class Strict(Counter):
    def reset(self, seed: int = 0) -> str:
        return super().reset(seed)


class Ungradable(Counter):
    def get_reward(self) -> float:
        raise RuntimeError("no judge")


def in_words(prompts: Any, completions: Any, environments: Any, **columns: Any) -> list[float | None]:
    """A reward function in TRL's form."""
    (messages,), (environment,) = completions, environments
    return [0.25 * environment.value if "done" in messages[-1]["content"] else None]


def recipe_of(environment: str, *keys: str, repair: str = "saar") -> Recipe:
    return load_recipe(None, [
        'task.kind="trl"', f'task.environment="{__name__}:{environment}"', "task.seeds=6", "rollout.tools=[]",
        "sandbox.output_chars=2000", f"repair.kind={repair}", *keys,
    ])  # fmt: skip


def tools_of(recipe: Recipe) -> dict[str, Any]:
    return dict(build_tools(recipe, None))  # type: ignore[arg-type]  # none of these tools runs in a sandbox


def add(amount: object) -> str:
    return render_call("add", {"amount": amount})


def played(recipe: Recipe, replies: Sequence[str], *, faults: bool = False, seed: int = 0) -> Trajectory:
    tasks, tokenizer = build_tasks(recipe), ByteTokenizer()
    task = next(task for task in [*tasks.train(0), *tasks.evaluation(9, 0)] if f"to {5 + seed}." in task.question)
    context = RolloutContext(
        ScriptedEngine(tokenizer, replies), Chat(tokenizer, style="hermes"), tools_of(recipe),
        LIMITS, SamplingParams(max_tokens=2000), build_repair(recipe),
    )  # fmt: skip
    if faults:
        context = build_evaluation_context(recipe, context, context.sampling)
    return asyncio.run(rollout_member(task, context, 0, seed=0, step=0, grade=tasks.grade))  # type: ignore[arg-type]


SPOILT = (add(2), add(1000), add(3), "It is done.")


@pytest.mark.parametrize(("environment", "rollback"), [("Counter", "auto"), ("Counter", "copy"), ("Locked", "replay")])
def test_a_failed_call_is_repaired_and_the_state_goes_back_with_it(environment: str, rollback: str) -> None:
    made = played(recipe_of(environment, f"task.rollback={rollback}"), SPOILT)
    assert [turn.repair.decision if turn.repair else None for turn in made.turns] == [None, "shallow", None]
    assert [o.text for turn in made.turns for o in turn.observations] == ["2", "5"]
    assert (made.reward, made.failures, made.raw_failures) == (1.0, 0, 1)
    assert made.turns[1].abandoned[0].observations[0].error_type == "ValueError"


def test_without_a_repair_what_a_failed_call_did_stays() -> None:
    made = played(recipe_of("Counter", repair="none"), SPOILT)
    assert [(o.status, o.text) for turn in made.turns for o in turn.observations] == [
        ("ok", "2"), ("error", "{'error': '1000 is too much'}"), ("ok", "1005"),
    ]  # fmt: skip
    assert made.reward == 0.0


def test_the_tools_of_a_trajectory_share_its_state_and_those_of_others_do_not() -> None:
    recipe = recipe_of("Counter")
    told = [
        [o.text for turn in played(recipe, (add(1 + seed), render_call("look", {}), "done"), seed=seed).turns
         for o in turn.observations]
        for seed in (0, 1)
    ]  # fmt: skip
    assert told == [["1", "{'value': 1}"], ["2", "{'value': 2}"]]


def test_an_error_that_a_tool_returns_is_a_failure_too() -> None:
    made = played(recipe_of("Counter", repair="none"), (add(60), render_call("look", {}), "done"))
    assert [o.status for turn in made.turns for o in turn.observations] == ["ok", "error"]


def test_a_call_that_is_not_what_the_schema_says_reaches_no_tool() -> None:
    made = played(recipe_of("Counter", repair="none"), (add("five"), add(5), "done"))
    assert [o.status for turn in made.turns for o in turn.observations] == ["malformed", "ok"]
    assert made.reward == 1.0


@pytest.mark.parametrize("keys", [(), ("task.rollback=impossible",)])
def test_a_state_that_cannot_go_back_is_not_repaired(keys: Sequence[str]) -> None:
    recipe = recipe_of("Locked", *keys)
    with pytest.raises(RecipeError, match=r"Locked keeps a state .* task.rollback to replay"):
        recipe.task.check_rollouts(recipe)
    assert played(recipe_of("Locked", *keys, repair="none"), (add(5), "done")).reward == 1.0


def test_calls_that_are_answered_otherwise_when_made_again_lose_the_rollout() -> None:
    made = played(recipe_of("Dice", "task.rollback=replay"), SPOILT)
    assert (made.stop, made.reward) == ("infrastructure", None)


def test_where_no_state_need_be_gone_back_to_calls_have_one_all_the_same() -> None:
    made = played(recipe_of("Locked", "task.rollback=unneeded"), SPOILT)
    assert [turn.repair.decision if turn.repair else None for turn in made.turns] == [None, "shallow", None]
    assert [o.text for turn in made.turns for o in turn.observations] == ["2", "1005"], "nothing was gone back to"
    assert played(recipe_of("Locked", "task.rollback=unneeded"), (add(2), add(3), "done")).reward == 1.0


@pytest.mark.parametrize("keys", [(), ("task.rollback=unneeded",)], ids=["copied", "said to be unneeded"])
def test_branches_are_refused_where_all_tools_have_one_state(keys: tuple[str, ...]) -> None:
    """A branch would begin with a fresh one, of which the reward is."""
    with pytest.raises(RecipeError, match="cannot branch"):
        (recipe := recipe_of("Counter", "strategy.kind=arpo", *keys)).task.check_branching(recipe)
    recipe.task.check_rollouts(recipe)  # as an evaluation does, which has no branches


def test_a_fault_of_a_tool_is_not_the_models() -> None:
    lost = played(recipe_of("Down"), (add(1), "done"))
    assert (lost.stop, lost.reward, lost.raw_failures) == ("infrastructure", None, 0)
    blamed = played(recipe_of("Down", 'task.faults=["TimeoutError"]', repair="none"), (add(1), "done"))
    assert (blamed.stop, blamed.raw_failures) == ("answer", 1)


@pytest.mark.parametrize("replies", [(add(5), "done"), ("I cannot count.",)], ids=["to be called", "to be graded"])
def test_an_environment_that_cannot_begin_loses_the_rollout(
    replies: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of("Unsteady")
    assert played(recipe, (add(5), "done")).reward == 1.0
    monkeypatch.setattr(Unsteady, "away", True)
    lost = played(recipe, replies)
    assert (lost.stop, lost.reward, lost.raw_failures) == ("infrastructure", None, 0)


def test_a_reward_that_cannot_be_had_loses_the_rollout() -> None:
    made = played(recipe_of("Ungradable"), (add(5), "done"))
    assert (made.stop, made.reward) == ("infrastructure", None)


def test_rewards_are_the_environments_and_those_of_functions_or_right_and_wrong() -> None:
    more = f'task.reward_functions="{__name__}:in_words"'
    assert played(recipe_of("Counter", more), (add(5), "done")).reward == 2.25
    assert played(recipe_of("Counter", more), (add(5), "well")).reward == 1.0
    assert played(recipe_of("Counter", more, "task.right_from=2"), (add(5), "done")).reward == 1.0
    assert played(recipe_of("Counter", more, "task.right_from=2"), (add(5), "well")).reward == -1.0


def test_a_rollout_without_a_call_is_graded_as_the_environment_begins() -> None:
    assert played(recipe_of("Counter"), ("I cannot count.",)).reward == 0.0


def test_what_an_environment_draws_must_follow_from_the_row() -> None:
    recipe = recipe_of("Moody")
    tasks = build_tasks(recipe)
    tool = tools_of(recipe)["add"]
    task = next(iter(tasks.train(0)))
    with pytest.raises(RecipeError, match="says something else for the same row"):
        asyncio.run(tool.of(task.id, "one").open("one"))  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="no task 'question'"):
        asyncio.run(tool.of("question", "two").open("two"))  # type: ignore[union-attr]


def test_tools_that_fail_now_and_then_keep_their_state() -> None:
    recipe = recipe_of("Counter", "evaluate.repair=saar", "evaluate.faults=0.5")
    made = [played(recipe, (add(5), add(5), add(5), "done"), faults=True, seed=seed) for seed in range(4)]
    assert sum(one.raw_failures for one in made) > 0
    assert {o.text for one in made for turn in one.turns for o in turn.observations if o.status == "ok"} <= {
        "5",
        "10",
        "15",
    }


def test_rows_that_reset_does_not_take_are_refused_by_their_columns(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "Go!", "seed": 1}\n')
    with pytest.raises(RecipeError, match=r"Strict\.reset cannot be called with prompt, seed: .*'prompt'"):
        build_tasks(recipe_of("Strict", "task.seeds=0", f'task.path="{file}"'))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (('task.environment="Counter"',), "is no import path"),
        (('task.environment="no_such_module:X"',), "cannot be imported"),
        (('task.environment="builtins:dict"',), "has no `reset`"),
        (('task.arguments={colour="red"}',), "cannot be called"),
        (("task.seeds=0",), "name one of them"),
        (("rollout.tools=retcon_no:Tool",), "cannot be imported"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(keys: Sequence[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        tools_of(recipe_of("Counter", *keys))


def test_messages_hold_what_the_model_wrote_and_read_without_what_was_repaired() -> None:
    made = played(recipe_of("Counter"), (add(2), "No, wait. " + add(1000), add(3), "It is done."))
    told = completion_messages(made)
    assert [message["role"] for message in told] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert told[2]["content"] == "No, wait. "
    assert told[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"amount": 3}'}
    assert told[-1] == {"role": "assistant", "content": "It is done."}


def test_a_tool_of_the_recipe_may_not_have_the_name_of_one_that_the_task_brings() -> None:
    recipe = recipe_of("Counter", f'rollout.tools=["{__name__}:OTHER"]')
    with pytest.raises(RecipeError, match=r"brings a tool .*'add'"):
        tools_of(recipe)


def test_the_model_is_shown_the_tools() -> None:
    recipe = recipe_of("Counter")
    tools, tokenizer = tools_of(recipe), ByteTokenizer()
    engine = ScriptedEngine(tokenizer, ["done"])
    context = RolloutContext(engine, Chat(tokenizer, style="qwen"), tools, LIMITS, SamplingParams(max_tokens=99))
    asyncio.run(run_rollout(Task("t", "?", ""), replace(context, repair=None), id="t", seed=0))
    shown = tokenizer.decode(engine.seen[0][1])
    assert "Adds to the counter." in shown
    assert "how much" in shown
