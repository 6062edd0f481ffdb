"""What `reset` of a user's class is called with."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from retcon.build import build_tasks
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.tasks.environments.methods import Factory, MethodEnvironment
from retcon.tasks.environments.types import CallFailed


def seeded(reset: Callable[[Any, random.Random], str]) -> Callable[..., str]:
    """Takes a seed, whatever the method that it wraps takes."""

    @wraps(reset)
    def begun(self: Any, seed: int) -> str:
        return reset(self, random.Random(seed))

    return begun


class Wrapped:
    @seeded
    def reset(self, draws: random.Random) -> str:
        return f"Count to {draws.randrange(9)}."

    def get_reward(self) -> float:
        return 1.0


class Compiled(dict[str, int]):
    reset = dict.update

    def get_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize("kind", [Wrapped, Compiled])
def test_a_reset_that_does_not_say_what_it_takes_is_called(kind: type) -> None:
    environment = MethodEnvironment(Factory(f"{__name__}:{kind.__name__}"), [{"seed": 1}])
    assert len(environment.tasks("train")) == 1


class Broken:
    """Its reset raises what it is told to."""

    error: BaseException = OSError("no disk")

    def reset(self, **row: Any) -> str:
        raise self.error

    def look(self) -> str:
        """Looks."""
        return ""

    def get_reward(self) -> float:
        return 1.0


class Exits(Wrapped):
    def end(self) -> str:
        """Ends."""
        sys.exit(2)


@pytest.mark.parametrize("error", [OSError("no disk"), SystemExit(3), KeyError("seed")])
def test_an_environment_that_raises_before_work_starts_is_told_with_its_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "error", error)
    recipe = load_recipe(None, ["task.kind=trl", f"task.environment={__name__}:Broken", "task.seeds=3"])
    said = rf"task\.environment: Broken, reset with .*, raised {type(error).__name__}: .* \(.*resets\.py:\d+\)$"
    with pytest.raises(RecipeError, match=said):
        build_tasks(recipe)


def test_a_tool_that_ends_the_process_fails_and_ends_nothing() -> None:
    environment = MethodEnvironment(Factory(f"{__name__}:Exits"), [{"seed": 1}])
    (task,) = environment.tasks("train")

    async def ended() -> None:
        await environment.call(await environment.begin(task.id), "end", {})

    with pytest.raises(CallFailed):
        asyncio.run(ended())
