"""Servers of OpenEnv, by its own package, as tasks: `make integration`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openenv", reason="openenv-core, which `make integration` installs")

import uvicorn
from openenv.core.env_server import Environment, MCPEnvironment, create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from rolling import played, recipe_of, tools_of

from retcon.build import build_tasks
from retcon.chat.families.hermes import render_call
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError

pytestmark = pytest.mark.filterwarnings("default")  # the packages' own


class Tally(MCPEnvironment):
    """Tools behind MCP, with a state; counting beyond 100 spoils it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        mcp, self.value = FastMCP("tally"), 0

        @mcp.tool
        def count(amount: int) -> int:
            """Counts on."""
            self.value += amount
            if amount > 100:
                raise ValueError("too much")
            return self.value

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self.value = seed or 0
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("only tools")

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
        told = await super().step_async(action, timeout_s=timeout_s, **more)
        told.reward = 0.5 if self.value == 6 else 0.0
        return told

    @property
    def state(self) -> State:
        return State()


class Move(Action):
    direction: str


class Seen(Observation):
    place: int = 0
    blocked: bool = False


class Walk(Environment):
    """Without tools: actions are steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self.place = seed or 0
        return Seen(place=self.place)

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        if action.direction not in ("left", "right"):
            raise ValueError("left or right")
        if action.direction == "left" and not self.place:
            return Seen(place=0, blocked=True)
        self.place += 1 if action.direction == "right" else -1
        return Seen(place=self.place, reward=1.0 if self.place == 3 else 0.0, done=self.place == 3)

    @property
    def state(self) -> State:
        return State()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """URLs of servers of the two, on free ports."""
    apps = {
        "tally": create_fastapi_app(Tally, CallToolAction, CallToolObservation, max_concurrent_envs=8),
        "walk": create_fastapi_app(Walk, Move, Seen, max_concurrent_envs=8),
    }
    running, urls = [], {}
    for name, app in apps.items():
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        sockets = [server.config.bind_socket()]
        sockets[0].listen()  # whoever comes before it runs waits
        urls[name] = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        thread.start()
        running.append((server, thread))
    yield urls
    for server, thread in running:
        server.should_exit = True
        thread.join()


def openenv(url: str, *keys: str, repair: str = "saar") -> Recipe:
    return recipe_of('task.kind="openenv"', f'task.url="{url}"', "task.seeds=4", *keys, repair=repair)


COUNTED = tuple(render_call("count", {"amount": n}) for n in (1, 1000, 4))


def test_the_tools_of_an_openenv_server_and_its_rewards(servers: dict[str, str]) -> None:
    recipe = openenv(servers["tally"], 'task.prompt="Count to six."', repair="none")
    assert tools_of(recipe)["count"].spec.description == "Counts on."
    made = played(recipe, (*COUNTED, "Done."), question="Count")
    assert [o.status for turn in made.turns for o in turn.observations] == ["ok", "error", "ok"]
    assert "too much" in made.turns[1].observations[0].text


def test_its_sessions_are_repaired_by_making_the_calls_again_or_not_at_all(servers: dict[str, str]) -> None:
    keys = ('task.prompt="Count to six."', "task.evaluation_share=0")
    with pytest.raises(RecipeError, match="cannot be gone back to"):
        (refused := openenv(servers["tally"], *keys)).task.check_rollouts(refused)
    recipe = openenv(servers["tally"], *keys, "task.rollback=replay")
    tasks = [task.id for task in build_tasks(recipe).train(0)]
    assert len(set(tasks)) == 4
    made = played(recipe, (*COUNTED, "Done."), question="Count")
    last = int(made.turns[1].observations[0].text)
    assert last - int(made.turns[0].observations[0].text) == 4
    assert (made.turns[1].repair and made.turns[1].repair.decision, made.failures) == ("shallow", 0)


def test_actions_of_a_server_without_tools_are_calls_of_step(servers: dict[str, str]) -> None:
    recipe = openenv(servers["walk"], "task.failed=blocked", repair="none")
    steps = [render_call("step", {"direction": d}) for d in ("left", "up", "right", "right", "right", "right")]
    made = played(recipe, (*steps[:5], "There."), question='"place": 0')
    told = [(o.status, o.error_type) for turn in made.turns for o in turn.observations]
    assert told == [("error", None), ("error", "EXECUTION_ERROR"), ("ok", None), ("ok", None), ("ok", None)]
    assert made.reward == 1.0
    over = played(recipe, (*steps[2:], "There."), question='"place": 0')
    assert over.turns[-2].observations[0].text == "the episode is over"


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RecipeError, match="no OpenEnv server answers at http"):
        build_tasks(openenv("http://127.0.0.1:9"))
