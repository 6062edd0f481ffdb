"""Settings that rollouts share.

Limits, context, harness, the purified share, and the reasons of lost rollouts.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from retcon.core.seeds import derive
from retcon.core.types import Provenance, Trajectory, count_first_tries
from retcon.engine.types import Generator, SamplingParams
from retcon.purify.types import Repair
from retcon.rollout.strategy import Strategy
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool

if TYPE_CHECKING:
    from retcon.chat.chat import Chat


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of p by step: piecewise linear between `points`, (step, p), constant outside.

    Two points at one step are a jump; the second holds from that step on. Raises ValueError without points, for a p
    outside [0, 1], and for decreasing steps."""

    points: Sequence[tuple[int, float]]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a schedule needs at least one point (step, p)")
        if not all(0 <= p <= 1 for _, p in self.points):
            raise ValueError(f"p must be in [0, 1]: {list(self.points)}")
        if any(first > second for (first, _), (second, _) in pairwise(self.points)):
            raise ValueError(f"steps must not decrease: {list(self.points)}")

    def at(self, step: int) -> float:
        """p at `step`."""
        passed = bisect_right(self.points, step, key=lambda point: point[0])
        if passed == 0:
            return self.points[0][1]
        if passed == len(self.points):
            return self.points[-1][1]
        (start, p), (end, q) = self.points[passed - 1 : passed + 1]
        return p + (q - p) * (step - start) / (end - start)


def constant(p: float) -> Schedule:
    """p at every step."""
    return Schedule(((1, p),))


def linear(start: float, end: float, steps: int) -> Schedule:
    """Move p from `start` at step 1 to `end` at `steps`."""
    return Schedule(((1, start), (steps, end)))


def is_purified(probability: float, seed: int, step: int, prompt_id: str, index: int) -> bool:
    """Whether rollout `index` of a prompt's group is purified at `step`: true for a share `probability` of all.

    A pure draw from (seed, step, prompt, index); raising `probability` only adds rollouts to those that are purified.
    """
    return derive("purify", seed, step, prompt_id, index) < probability * 2**63


@dataclass(frozen=True, slots=True)
class Probes:
    """p by how often first tries at a prompt fail. Ours.

    count: rollouts of a prompt, the first of its group, that are not purified, whatever p is: the probes. least: the p
    of a prompt at which none of their first tries fails, if p is not less by itself."""

    count: int
    least: float = 0.0

    def share(self, probability: float, made: Sequence[Trajectory]) -> float:
        """p of the group's other rollouts, of which `made` are the probes: least + (probability - least) · f, where f
        is the share of the probes' first tries that failed (`retcon.core.types.count_first_tries`), 0 without any."""
        tries = [count_first_tries(trajectory) for trajectory in made if trajectory.stop != "infrastructure"]
        tried, failed = sum(t.made for t in tries), sum(t.failed for t in tries)
        least = min(self.least, probability)
        return least + (probability - least) * (failed / tried if tried else 0.0)


log = logging.getLogger(__name__)

MAX_REASONS = 5
"""Distinct reasons of lost rollouts that are logged and kept."""
MAX_CHARS = 400
MAX_LOST_SHARE = 0.05
"""Share of lost rollouts above which an evaluation is invalid."""
_OF_ONE = re.compile(r"^(?:request|rollout) \S+: ")


@dataclass(frozen=True, slots=True, eq=False)
class Faults:
    """Counts the reasons for which rollouts of a context were lost."""

    _why: Counter[str] = field(default_factory=Counter)

    def add(self, id: str, why: str) -> None:
        """Count the reason of one lost rollout, without the rollout's name; log a new one."""
        why = " ".join(_OF_ONE.sub("", why).split())[:MAX_CHARS]
        if why not in self._why:
            if len(self._why) >= MAX_REASONS:
                return
            log.warning("rollout %s is lost: %s", id, why)
        self._why[why] += 1

    @property
    def first(self) -> str:
        """The first reason; empty without faults."""
        return next(iter(self._why), "")

    @property
    def why(self) -> str:
        """The most frequent reason, as a clause to append; empty without faults."""
        return f", most often as {self._why.most_common(1)[0][0]}" if self._why else ""


def count_ungraded(rollouts: Iterable[Trajectory]) -> tuple[int, int]:
    """Return the number of ungraded answers, and of all answers.

    A rollout answered if its last turn is complete and calls nothing, or if its harness returned text.
    """
    ends = [t for t in rollouts if isinstance(t.returned, str) or _answers(t)]
    return sum(t.reward is None for t in ends), len(ends)


def _answers(trajectory: Trajectory) -> bool:
    last = trajectory.turns[-1] if trajectory.turns else None
    return last is not None and last.stop == "answer" and not last.calls


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of one rollout.

    Args:
        max_tokens: of the whole history, prompt and observations included. Observations of the last turn are cut there.
        max_turns: committed generations; a call in the last one still runs.
        lookahead_tokens: beyond max_tokens, for a repair's attempts.
        max_response_tokens: of max_tokens, those after the prompt; 0: all that remain.
    """

    max_tokens: int
    max_turns: int
    lookahead_tokens: int = 0
    max_response_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_turns < 1 or min(self.lookahead_tokens, self.max_response_tokens) < 0:
            raise ValueError(f"max_tokens and max_turns must be 1 or more, the others 0 or more: {self}")

    def after(self, prompt: int) -> RolloutLimits:
        """Return the limits of a rollout whose prompt has `prompt` tokens."""
        most = prompt + (self.max_response_tokens or self.max_tokens)
        return replace(self, max_tokens=min(self.max_tokens, most))


CONTEXT_QUESTION = "Do what `context` asks for."


@dataclass(frozen=True, slots=True)
class SubcallLimits:
    """Limits of model calls by programs, for the tree below a rollout.

    Args:
        depth: levels of rollouts below the root; deeper ones are answered by the model alone.
        calls, input_tokens, output_tokens, seconds: of all descendants together.
        question: makes the question of a rollout below the root about its context.
    """

    depth: int = 1
    calls: int = 1000
    input_tokens: int = 5_000_000
    output_tokens: int = 500_000
    seconds: float = 600.0
    question: Callable[[str], str] = lambda _context: CONTEXT_QUESTION


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """Result of an external agent loop, perhaps with a reward.

    answer: graded in place of the model's last message, unless None.
    """

    trajectory: Trajectory
    answer: str | None = None


class Harness(Protocol):
    """An external agent loop that replaces `run_rollout`."""

    async def run(
        self, task: Task, context: RolloutContext, *, id: str, seed: int, provenance: Provenance
    ) -> HarnessResult:
        """Run one rollout within the context's limits, with its sampling.

        An error that no limit explains ends it with stop `infrastructure`, and is added to context.faults.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Everything that a rollout needs besides its task, seed and grader.

    Args:
        tools: by name; stateful ones are opened for each trajectory.
        sampling: its seed and stop_ids are set for each generation.
        repair: handles failed turns; None leaves them.
        probability: p, the share of a group's rollouts that have the repair.
        probes: adapt p to the group's first rollouts.
        model: name, for the record.
        strategy: where a group's rollouts branch; None: nowhere.
        harness: replaces `run_rollout`.
        subcalls: limits of the model calls that programs make.
        faults: reasons of lost rollouts, shared by contexts that `dataclasses.replace` makes of this one.
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
    subcalls: SubcallLimits = SubcallLimits()
    faults: Faults = field(default_factory=Faults, compare=False, repr=False)
