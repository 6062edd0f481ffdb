"""What `reset` of a user's class is called with."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from retcon.tasks.environments.methods import Factory, MethodEnvironment


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
