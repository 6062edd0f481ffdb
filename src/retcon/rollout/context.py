"""What rollouts have in common."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from retcon.chat.chat import Chat
from retcon.core.types import Provenance, Trajectory
from retcon.engine.types import Generator, SamplingParams
from retcon.purify.mixing import Probes
from retcon.purify.types import Repair
from retcon.rollout.strategy import Strategy
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool

log = logging.getLogger(__name__)

TOLD = 5
"""Reasons that are told and kept: more say no more."""
CHARS = 400
MOST_LOST = 0.05  # share of rollouts; an evaluation that lost more says nothing
_OF_ONE = re.compile(r"^(?:request|rollout) \S+: ")


@dataclass(frozen=True, slots=True, eq=False)
class Faults:
    """The reasons of the rollouts of a context."""

    _why: Counter[str] = field(default_factory=Counter)

    def add(self, id: str, why: str) -> None:
        """A rollout cannot go on; why: what was said, of which what names the rollout is left out."""
        why = " ".join(_OF_ONE.sub("", why).split())[:CHARS]
        if why not in self._why:
            if len(self._why) >= TOLD:
                return
            log.warning("rollout %s is lost: %s", id, why)
        self._why[why] += 1

    @property
    def first(self) -> str:
        """The first reason; empty where there was none."""
        return next(iter(self._why), "")

    @property
    def why(self) -> str:
        """The most frequent reason, as a part of a sentence; empty where there was none."""
        return f", most often as {self._why.most_common(1)[0][0]}" if self._why else ""


def lost_in_grading(rollouts: Iterable[Trajectory]) -> tuple[int, int]:
    """Of how many rollouts that gave an answer no grader could tell whether it is right, and how many gave one: those
    whose last turn ended by itself and calls nothing, and those whose harness returned text."""
    ends = [t for t in rollouts if isinstance(t.returned, str) or _answers(t)]
    return sum(t.reward is None for t in ends), len(ends)


def _answers(trajectory: Trajectory) -> bool:
    last = trajectory.turns[-1] if trajectory.turns else None
    return last is not None and last.stop == "answer" and not last.calls


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How far a rollout may go. max_tokens: a history has no more, prompt and observations counted; what does not fit
    of the last turn's observations is left out of its segments. max_turns: generations that are committed; a call in
    the last one still runs. lookahead_tokens: room beyond max_tokens for what a repair tries. max_response_tokens: of
    max_tokens, those after the prompt; 0: all that it leaves.
    """

    max_tokens: int
    max_turns: int
    lookahead_tokens: int = 0
    max_response_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_turns < 1 or min(self.lookahead_tokens, self.max_response_tokens) < 0:
            raise ValueError(f"max_tokens and max_turns must be 1 or more, the others 0 or more: {self}")

    def after(self, prompt: int) -> RolloutLimits:
        """Return the limits of a rollout whose prompt has so many tokens."""
        most = prompt + (self.max_response_tokens or self.max_tokens)
        return replace(self, max_tokens=min(self.max_tokens, most))


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollout that somebody else's loop has made. It has a reward where that loop gave one. answer: what is graded in
    place of the model's last message, None for that."""

    trajectory: Trajectory
    answer: str | None = None


class Harness(Protocol):
    """A loop of somebody else's, which asks the model and runs its tools in place of `run_rollout`."""

    async def rolled(
        self, task: Task, context: RolloutContext, *, id: str, seed: int, provenance: Provenance
    ) -> Rolled:
        """One rollout, within the context's limits and sampled as it says. Ends with stop `infrastructure` where the
        loop raises what no limit explains; context.faults are told why."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What many rollouts share: all but a task, its seed and its grader.

    tools: by name; those that keep state are opened for each trajectory alone. sampling: its seed and stop_ids are set
    for each generation. repair: what to do about failed turns, None to leave them. probability: p, the share of a
    group's rollouts that have the repair. probes: how p follows the group's own first rollouts, None where it does
    not. model: who writes, for the record. strategy: where a group's rollouts branch; None: nowhere. harness: who makes
    rollouts, None for `run_rollout`. faults: why rollouts were lost, of all contexts that were made of one. A frozen
    value: `dataclasses.replace` makes another one of it.
    """

    engine: Generator
    chat: Chat
    tools: Mapping[str, AnyTool]
    limits: RolloutLimits
    sampling: SamplingParams = field(default_factory=SamplingParams)
    repair: Repair | None = None
    probability: float = 1.0
    probes: Probes | None = None
    model: str | None = None
    strategy: Strategy | None = None
    harness: Harness | None = None
    faults: Faults = field(default_factory=Faults, compare=False, repr=False)
