"""Making demonstrations, whatever their source: how many candidates are asked for, and when a source is given up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.learning import DemosSection
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Observation, ToolCall, Trajectory, Turn
from retcon.train.demos import making
from retcon.train.demos.making import demonstrations
from retcon.train.demos.rolling import WRONG
from retcon.train.demos.types import LOST, DemoSetup, Made

FAILED = Turn((), (ToolCall("0.0", "python", "", 0),), (Observation("0.0", "", "error"),), "call")


class Source:
    """Keeps those of its candidates whose numbers it is given; the call of those in `failing` fails."""

    chunk, ends, inputs = 2, False, ()

    def __init__(
        self, kept: frozenset[int], why: str = WRONG, last: int = 1000, failing: frozenset[int] = frozenset()
    ) -> None:
        self.kept, self.why, self.last, self.failing = kept, why, last, failing
        self.asked: list[tuple[int, int, int]] = []

    async def make(self, start: int, stop: int, kept: int) -> Made:
        self.asked.append((start, stop, kept))
        seen = range(start, min(stop, self.last))
        found = tuple(
            Trajectory(str(n), "t", (), (FAILED,) * (n in self.failing), reward=1.0) for n in seen if n in self.kept
        )
        return Made(len(seen), found, Counter({self.why: len(seen) - len(found)} if len(found) < len(seen) else {}))


class Playing(DemosSection):
    source: ClassVar[Source]

    @asynccontextmanager
    async def open(self, setup: DemoSetup) -> AsyncIterator[Source]:
        yield self.source


def made(source: Source, wanted: int, *overrides: str) -> list[str]:
    Playing.source = source
    recipe = load_recipe(None, [f"demos.kind={__name__}:Playing", f"sft.demonstrations={wanted}", *overrides])
    return [one.id for one in asyncio.run(demonstrations(recipe, Chat(ByteTokenizer())))]


def test_no_more_are_asked_for_than_are_wanted_until_one_is_rejected() -> None:
    source = Source(frozenset({0, 1, 2, 5, 6}))
    assert made(source, 3) == ["0", "1", "2"]
    assert source.asked == [(0, 2, 0), (2, 3, 2)]
    assert made(source, 4) == ["0", "1", "2", "5"]
    assert source.asked[2:] == [(0, 2, 0), (2, 4, 2), (4, 6, 3)], "whole stretches, of which some are rejected"


def test_a_source_is_given_up_after_so_many_in_a_row_of_which_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "PATIENCE", 6)
    with pytest.raises(RecipeError, match="none of 6 candidates is kept: 6 wrong to the grader"):
        made(Source(frozenset()), 2)
    assert made(Source(frozenset({1, 6, 11, 16})), 4) == ["1", "6", "11", "16"], "however many there are in all"
    assert made(Source(frozenset({1, 9})), 2) == ["1"]


@pytest.mark.parametrize(
    ("failing", "kept"), [(frozenset(), ["0", "1"]), (frozenset({7}), ["0", "1", "2", "3", "4", "5", "7"])]
)
def test_a_source_is_given_up_once_what_it_gives_adds_nothing_to_the_share(
    failing: frozenset[int], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "PATIENCE", 8)
    everything = frozenset(range(1000))
    assert made(Source(everything, failing=failing), 20, "demos.failed_share=0.2") == kept
    with pytest.raises(RecipeError, match="none of 8 candidates is kept: 8, 8 with a failed call, do not make up fail"):
        made(Source(everything, failing=everything), 20, "demos.failed_share=0.2")


def test_one_lost_in_twenty_of_those_that_there_were_is_too_many() -> None:
    source = Source(frozenset({0, 1}), LOST, last=3)
    source.chunk = 64
    with pytest.raises(SandboxUnavailable, match="1 of 3 demonstrations were lost"):
        made(source, 99)


def test_one_lost_in_twenty_is_not_too_many() -> None:
    source = Source(frozenset(range(40)) - {7}, LOST)
    source.chunk = 20
    assert made(source, 20) == [str(n) for n in range(21) if n != 7]
