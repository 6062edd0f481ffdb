"""A user's setup that fails halfway."""

from __future__ import annotations

import asyncio

import pytest

from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.tasks.environments.types import ended_if_it_fails


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("why", [OSError("no room"), RecipeError("no runtime"), asyncio.CancelledError()])
def test_it_is_ended_and_what_failed_is_what_is_told(why: BaseException, ends: bool) -> None:
    """A cancelled rollout is cancelled, and a wrong recipe is wrong, also where ending what was begun fails."""
    told: list[str] = []

    async def end() -> None:
        told.append("ended")
        if not ends:
            raise InfrastructureFault("its tools ended with KeyError")

    async def begun() -> None:
        async with ended_if_it_fails(end):
            raise why

    with pytest.raises(type(why)) as raised:
        asyncio.run(begun())
    assert (raised.value is why, told) == (True, ["ended"])


def test_what_is_set_up_stays() -> None:
    async def end() -> None:
        raise AssertionError

    async def begun() -> str:
        async with ended_if_it_fails(end):
            return "set up"

    assert asyncio.run(begun()) == "set up"
