"""Prompts that several requests begin with, as the rollouts of a group do: computed once, then copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retcon.engine.local.requests import Request
from retcon.engine.local.slabs import Memory

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 256
"""Prompts whose last logits are kept at most."""


@dataclass(slots=True, eq=False)
class Prompt:
    """logits: (V,) after its last id, None while they are computed. holders: requests in whose slots it lies."""

    ids: tuple[int, ...]
    holders: dict[str, Request] = field(default_factory=dict)
    logits: Tensor | None = None


class PromptCache:
    """The prompts whose keys and values lie in some slot, or are about to."""

    def __init__(self) -> None:
        self._by_ids: dict[tuple[int, ...], Prompt] = {}
        self._of: dict[str, Prompt] = {}

    def find(self, ids: tuple[int, ...]) -> Prompt | None:
        return self._by_ids.get(ids)

    def lead(self, request: Request, ids: tuple[int, ...]) -> None:
        """The request is going to compute a prompt that nobody has."""
        self.leave(request)
        if len(self._by_ids) < KEPT:
            self._by_ids[ids] = self._of[request.id] = Prompt(ids, {request.id: request})

    def led(self, request: Request, logits: Tensor) -> None:
        """It has; logits (V,) are those after the last id."""
        prompt = self._of.get(request.id)
        if prompt is not None and prompt.logits is None:
            prompt.logits = logits.clone()  # not a view, which would keep those of the whole forward

    def copy(self, prompt: Prompt, request: Request, memory: Memory) -> None:
        """Give the request, which has a slot and nothing in it, the prompt's keys and values."""
        source = next(iter(prompt.holders.values())).place
        memory.copy([(source, request.place, len(prompt.ids))])  # type: ignore[list-item]
        request.cached = list(prompt.ids)
        prompt.holders[request.id] = request
        self._of[request.id] = prompt

    def cropped(self, request: Request) -> None:
        """Less than before is cached of the request."""
        prompt = self._of.get(request.id)
        if prompt is not None and len(request.cached) < len(prompt.ids):
            self.leave(request)

    def leave(self, request: Request) -> None:
        """The request holds no prompt any more."""
        prompt = self._of.pop(request.id, None)
        if prompt is not None:
            del prompt.holders[request.id]
            if not prompt.holders:
                del self._by_ids[prompt.ids]

    def clear(self) -> None:
        self._by_ids.clear()
        self._of.clear()
