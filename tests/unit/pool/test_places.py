"""Who asks a server of chat completions next, where it takes fewer requests than wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retcon.engine.openai.engine import IN_A_ROW, RequestSlots


async def asks(places: RequestSlots, name: str, told: list[str]) -> None:
    """A turn; of a rollout that is under way where its name says so."""
    async with places.slot(under_way=name.startswith("again")):
        told.append(name)
        await asyncio.sleep(0)


def asked(names: Sequence[str], cancelled: str = "") -> list[str]:
    """In which order they come who wait for one place, of whom one is cancelled as the place becomes free."""

    async def main() -> list[str]:
        places, told = RequestSlots(1), list[str]()
        async with places.slot(under_way=False):
            waiting = {name: asyncio.create_task(asks(places, name, told)) for name in names}
            await asyncio.sleep(0)
        if cancelled:
            waiting[cancelled].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        async with asyncio.timeout(60), places.slot(under_way=False):
            return told

    return asyncio.run(main())


def test_rollouts_that_are_under_way_come_first() -> None:
    assert asked(["first 1", "first 2", "again 1", "again 2"]) == ["again 1", "again 2", "first 1", "first 2"]


def test_one_that_is_given_up_takes_no_place() -> None:
    assert asked(["first 1", "again 1", "again 2"], cancelled="again 1") == ["again 2", "first 1"]
    assert asked(["first 1", "again 1"], cancelled="first 1") == ["again 1"]


def test_one_that_has_yet_to_begin_does_not_wait_for_ever() -> None:
    assert asked(["first", *(f"again {n}" for n in range(2 * IN_A_ROW))]).index("first") == IN_A_ROW
