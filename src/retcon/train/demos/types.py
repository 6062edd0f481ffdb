"""What a source of demonstrations is, and what it is given. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.tasks.registry import TaskSet

LOST = "lost to infrastructure faults"


@dataclass(frozen=True, slots=True)
class DemoSetup:
    """What demonstrations are made for. chat: of the model that will learn. tasks: gives the task set. on_place: told
    where a teacher that is a model computes."""

    recipe: Recipe
    chat: Chat
    tasks: Callable[[], TaskSet]
    on_place: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What came of some candidates. seen: how many there were, fewer than were asked for only where there are no more.
    rejected: how many were not kept, by why. What was made of them is in `kept` or counted in `rejected`."""

    seen: int
    kept: tuple[Trajectory, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=Counter)


class Source(Protocol):
    """Candidates in an order that depends on the recipe alone, each made into a demonstration or rejected."""

    @property
    def chunk(self) -> int:
        """Candidates that are made at once: what a kill loses at most."""
        ...

    @property
    def ends(self) -> bool:
        """Whether they come to an end, and soon: others are given up after many in a row that add no demonstration."""
        ...

    @property
    def inputs(self) -> Mapping[str, str]:
        """Name to fingerprint of what they are made from, besides the recipe."""
        ...

    async def make(self, start: int, stop: int, kept: int) -> Made:
        """Of the candidates start to stop, 0-based; `kept` were kept of those before. Raises what the tasks, tools and
        engines raise for work that cannot go on."""
        ...


OpenSource = AbstractAsyncContextManager[Source]
"""What a kind's `open` gives. Entered before any work: whatever is wrong with the recipe or its data is said then."""
