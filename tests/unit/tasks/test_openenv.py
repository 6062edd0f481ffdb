"""Environments behind a server that speaks as OpenEnv's do: what is the model's failure there, and what is nobody's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retcon.build import build_tasks, build_tools
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.types import ToolCall, Trajectory, Turn
from retcon.tasks.kinds import openenv
from servers.answering import Answer, Asked, serving
from servers.openenv import Lookout, playing

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with playing() as found:
        yield found


def recipe_of(url: str, *keys: str) -> Recipe:
    return load_recipe(None, [
        'task.kind="openenv"', f'task.url="{url}"', "task.seeds=2", "task.evaluation_share=0", "rollout.tools=[]",
        "sandbox.output_chars=500", *keys,
    ])  # fmt: skip


def walked(recipe: Recipe, *by: int) -> tuple[list[tuple[str, str]], float | None]:
    """Status and text of each step from 0 on, and the reward in the end."""

    async def told() -> tuple[list[tuple[str, str]], float | None]:
        tasks = build_tasks(recipe)
        task = next(task for task in tasks.train(0) if '"at": 0' in task.question)
        tool: Any = build_tools(recipe, None)["step"]  # type: ignore[arg-type]  # it runs in no sandbox
        opened = await tool.of(task.id, "one").open("one")
        answers = [await opened(ToolCall("c", "step", {"by": n}, 0)) for n in by]
        await opened.close()
        graded: Any = tasks.grade(task, Trajectory("one", task.id, (), (Turn(()),)))
        return [(one.status, one.text) for one in answers], (await graded).reward

    return asyncio.run(told())


@pytest.mark.parametrize("keys", [(), ("task.rollback=unneeded",)])
def test_steps_are_rendered_as_json_and_their_rewards_added(url: str, keys: Sequence[str]) -> None:
    told, reward = walked(recipe_of(url, *keys), 1, 2)
    assert told == [("ok", '{"at": 1, "blocked": false}'), ("ok", '{"at": 3, "blocked": false}')]
    assert reward == 1.0


def test_an_action_that_the_server_refuses_is_the_models_failure(url: str) -> None:
    assert walked(recipe_of(url), 0, 3, 1)[0] == [
        ("error", "stand still?"), ("ok", '{"at": 3, "blocked": false}'), ("error", "the episode is over"),
    ]  # fmt: skip


@pytest.mark.parametrize("by", [13, 99])
def test_a_session_that_breaks_off_or_a_server_that_is_full_is_an_infrastructure_fault(url: str, by: int) -> None:
    assert [status for status, _ in walked(recipe_of(url), 1, by)[0]] == ["ok", "infrastructure"]


def test_what_is_not_for_the_model_is_not_among_its_arguments(url: str) -> None:
    parameters = build_tools(recipe_of(url), None)["step"].spec.parameters  # type: ignore[arg-type]
    assert parameters["properties"] == {"by": {"type": "integer"}}


def test_what_a_row_says_of_prompt_and_answer_is_not_told_to_the_server(url: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Walk. ", "answer": "3", "seed": 1}\n')
    (task,) = build_tasks(recipe_of(url, "task.seeds=0", f'task.path="{tmp_path}/rows.jsonl"')).train(0)
    assert (task.question, task.answer) == ('Walk. {"at": 1}', "3")
    (tmp_path / "rows.jsonl").write_text('{"seed": 1, "goal": 3}\n')
    with pytest.raises(InfrastructureFault, match=r"cannot be reset with .*'goal': 3.*: no such \['goal', 'seed'\]"):
        next(
            build_tasks(
                recipe_of(url, "task.seeds=0", f'task.path="{tmp_path}/rows.jsonl"', "task.right_from=1")
            ).train(0)
        )


def test_a_session_goes_back_by_making_its_calls_again_and_not_otherwise(url: str) -> None:
    async def back(recipe: Recipe) -> str:
        tool: Any = build_tools(recipe, None)["step"]  # type: ignore[arg-type]
        task = next(task for task in build_tasks(recipe).train(0) if '"at": 0' in task.question)
        opened = await tool.of(task.id, "one").open("one")
        try:
            await opened(ToolCall("a", "step", {"by": 1}, 0))
            kept = await opened.checkpoint()
            await opened(ToolCall("b", "step", {"by": 1}, 0))
            await opened.rollback(kept)
            return str((await opened(ToolCall("c", "step", {"by": -1}, 0))).text)
        finally:
            await opened.close()

    assert asyncio.run(back(recipe_of(url, "task.rollback=replay"))) == '{"at": 0, "blocked": false}'
    with pytest.raises(InfrastructureFault, match="cannot be kept"):
        asyncio.run(back(recipe_of(url)))


def test_what_a_listed_tool_tells_is_its_text_a_failure_or_nobodys_fault() -> None:
    async def looked(url: str) -> list[tuple[str, str | None, str]]:
        recipe = recipe_of(url)
        tool: Any = build_tools(recipe, None)["look"]  # type: ignore[arg-type]
        opened = await tool.of(next(build_tasks(recipe).train(0)).id, "one").open("one")
        places = ("door", "dark", "wall", "moon", "gone")
        told = [await opened(ToolCall("c", "look", {"at": place}, 0)) for place in places]
        await opened.close()
        return [(one.status, one.error_type, one.text) for one in told]

    with playing(Lookout, "CallToolAction") as url:
        assert asyncio.run(looked(url)) == [
            ("ok", None, "It is\nopen."),
            ("error", None, "too dark"),
            ("error", "execution_error", "there is a wall"),
            ("timeout", "timeout", "too far"),
            ("infrastructure", "InfrastructureFault", "look: no way there"),
        ]


@pytest.mark.parametrize("schema", [{}, [], {"action": None}, {"action": {"title": "CallToolAction"}}], ids=str)
def test_a_server_of_another_kind_is_refused_by_its_address(schema: object) -> None:
    with serving(lambda _: Answer(schema, headers=JSON)) as other:
        url = other.url.removesuffix("/v1")
        with pytest.raises(RecipeError, match=f"task.url: no OpenEnv server answers at {url}: .+"):
            build_tasks(recipe_of(url))


@pytest.mark.parametrize(("at", "seconds", "why"), [("/schema", 0.05, ""), ("/ws", 60.0, "[^ ]+: no session: ")])
def test_a_server_that_says_nothing_is_not_waited_for_without_end(
    at: str, seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_enough = threading.Event()

    def reply(asked: Asked) -> Answer:
        if asked.path == at:
            asked_enough.wait(5)  # if that is waited for, another reason is told
        else:
            monkeypatch.setattr(openenv, "SECONDS", 0.05)  # for what is asked next
        return Answer({"action": {"title": "CallToolAction"}}, headers=JSON)

    monkeypatch.setattr(openenv, "SECONDS", seconds)
    with serving(reply) as silent:
        url = silent.url.removesuffix("/v1")
        try:
            with pytest.raises(RecipeError, match=f"server answers at {url}: {why}no answer in 0.05 seconds"):
                build_tasks(recipe_of(url))
        finally:
            asked_enough.set()
