"""Model calls by a rollout's programs: child trajectories within the tree's budget."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from retcon.core.concurrency import gather_or_cancel
from retcon.core.seeds import derive
from retcon.core.types import NO_PROVENANCE, Parent, Provenance, Trajectory
from retcon.rollout.context import RolloutContext, SubcallLimits
from retcon.tasks.types import Task

_THOUGHT_END = re.compile(r"</think>|\[/THINK\]")


class SubcallBudget:
    """Budget that the programs of a tree of rollouts share.

    calls: of the model so far. input_tokens, output_tokens: of all children. refused: calls beyond a limit.
    """

    def __init__(self, limits: SubcallLimits) -> None:
        self._limits = limits
        self._started = time.monotonic()
        self.calls = self.input_tokens = self.output_tokens = self.refused = 0

    def refusal(self) -> str | None:
        """Describe the limit that is reached; below all, count one call and return None."""
        limits = self._limits
        used = (
            (self.calls, limits.calls, "calls of the model"),
            (self.input_tokens, limits.input_tokens, "tokens of prompts"),
            (self.output_tokens, limits.output_tokens, "tokens of answers"),
            (time.monotonic() - self._started, limits.seconds, "seconds"),
        )
        for amount, most, what in used:
            if amount >= most:
                self.refused += 1
                return f"Error: the limit of {most:,g} {what} is reached; answer with what you have"
        self.calls += 1
        return None

    def add(self, child: Trajectory) -> None:
        self.output_tokens += child.sampled_tokens
        self.input_tokens += sum(len(s.ids or ()) for s in child.segments) - child.sampled_tokens


@dataclass(frozen=True, slots=True)
class TreePlace:
    """Place of a rollout in a tree of rollouts.

    Args:
        budget: of the whole tree.
        parent: None at the root.
        depth: levels above it.
        on_child: called with each trajectory below it, and the prompt that it answers, when that has ended; with its
            own children before it.
    """

    budget: SubcallBudget
    parent: Parent | None = None
    depth: int = 0
    on_child: Callable[[Trajectory, str], None] = lambda _child, _prompt: None


@dataclass(slots=True)
class RolloutModel:
    """Implements `ModelCalls` for the programs of one rollout.

    Args:
        task: whose input is `meta["context"]`, else its question.
        id, seed, place: of the rollout.
        run: runs a child; see `run_rollout`.
        turn: index of the turn whose calls run.
        provenance: of the rollout, and of its children.
    """

    task: Task
    settings: RolloutContext
    id: str
    seed: int
    place: TreePlace
    run: Callable[..., Awaitable[Trajectory]]
    turn: int = 0
    provenance: Provenance = NO_PROVENANCE
    _asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    _children: list[Trajectory] = field(default_factory=list)

    @property
    def children(self) -> tuple[Trajectory, ...]:
        """Ended children by turn and id, as threads ask in any order."""
        return tuple(sorted(self._children, key=lambda child: (child.parent and child.parent.turn, child.id)))

    @property
    def context(self) -> object:
        return self.task.meta.get("context", self.task.question)

    async def complete(self, call: str, prompts: Sequence[str]) -> list[str]:
        plain = replace(self.settings, chat=self.settings.chat.without_system(), tools={}, repair=None)
        return await gather_or_cancel(self._child(call, prompt, Task("", prompt, ""), plain) for prompt in prompts)

    async def recurse(self, call: str, prompts: Sequence[str]) -> list[str]:
        if self.place.depth >= self.settings.subcalls.depth:
            return await self.complete(call, prompts)
        question, system = self.settings.subcalls.question, self.task.system
        return await gather_or_cancel(
            self._child(call, prompt, Task("", question(prompt), "", system, {"context": prompt}), self.settings)
            for prompt in prompts
        )

    async def _child(self, call: str, prompt: str, task: Task, settings: RolloutContext) -> str:
        """Run one child and return its answer, or an error.

        Its id and seed follow from the call and the prompt, not from the order in which threads ask.
        """
        self._asked[call, prompt] += 1
        name = derive("subcall", self.seed, call, prompt, self._asked[call, prompt])
        place = self.place
        if (refusal := place.budget.refusal()) is not None:
            return refusal
        id = f"{self.id}/{call}/{name:016x}"
        child = await self.run(
            replace(task, id=id),
            settings,
            id=id,
            seed=name,
            provenance=self.provenance,
            place=replace(place, parent=Parent(self.id, self.turn, call), depth=place.depth + 1),
        )
        place.budget.add(child)
        text = answer_text(child, settings)
        if child.stop == "answer":
            child = replace(child, answer=text)
        self._children.append(child)
        place.on_child(child, prompt)
        return text


def answer_text(child: Trajectory, settings: RolloutContext) -> str:
    """Return a child's answer without thoughts and markup, or an error."""
    if isinstance(child.returned, str):
        return child.returned
    if child.stop == "infrastructure":
        return f"Error: {child.reason or 'the model cannot be reached'}"
    if not child.turns:
        return "Error: the prompt leaves the model no room for an answer: make it shorter"
    chat, turn = settings.chat, child.turns[-1]
    text = turn.text
    if turn.generated and turn.generated[-1].ids and turn.generated[-1].ids[-1] in chat.stop_ids:
        text = text.removesuffix(chat.tokenizer.decode(turn.generated[-1].ids[-1:]))
    return _THOUGHT_END.split(chat.family.visible_text(text))[-1].strip()
