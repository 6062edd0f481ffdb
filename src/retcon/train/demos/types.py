"""Interface of demonstration sources. No torch."""

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
    """Arguments of a source. chat: the learner's. tasks: returns the task set. on_place: called with the placement of a
    teacher that is a model."""

    recipe: Recipe
    chat: Chat
    tasks: Callable[[], TaskSet]
    on_place: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class DemoBatch:
    """Demonstrations from some candidates. seen: their number, less than requested only at the end of the source.
    rejected: counts by reason. Every demonstration made is in `kept` or counted in `rejected`."""

    seen: int
    kept: tuple[Trajectory, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=Counter)


class Source(Protocol):
    """A source of demonstrations: candidates in an order set by the recipe."""

    @property
    def chunk(self) -> int:
        """Candidates per batch: the most that a kill loses."""
        ...

    @property
    def ends(self) -> bool:
        """Whether the source ends soon; others are given up after many candidates without a demonstration."""
        ...

    @property
    def inputs(self) -> Mapping[str, str]:
        """Name to fingerprint of the inputs besides the recipe."""
        ...

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Make demonstrations of candidates start to stop, 0-based; `kept` were kept before. Raises what the tasks,
        tools and engines raise for work that cannot go on."""
        ...


OpenSource = AbstractAsyncContextManager[Source]
"""Result of a kind's `open`. Entered before any work: it raises for errors of the recipe or its data."""
