"""A preference pair: what the model wrote and failed, and what it wrote instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retcon.core.texts import counted

Message = Mapping[str, object]
Written = str | tuple[Message, ...]
"""Text as the model saw it, template and all; or chat messages, each with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One side of a pair.

    ids: (T,) token ids, None where only text is known. mask: (T,) 1 on the tokens that the loss is to count, None where
    they are not known apart, so that all of the completion counts.
    """

    written: Written
    ids: tuple[int, ...] | None = None
    mask: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and (self.ids is None or len(self.mask) != len(self.ids)):
            raise ValueError(f"a mask of {len(self.mask)} for {counted(len(self.ids or ()), 'token')}")


@dataclass(frozen=True, slots=True)
class Pair:
    """chosen is to become more likely after prompt, rejected less: the data of DPO (arXiv 2305.18290).

    id: says where the pair is from. prompt, chosen and rejected are all text or all messages. prompt_ids: (T,), None
    where only text is known. about: further columns for the file, such as the similarity of the two; they must not be
    named as one of the format's own (`retcon.store.pairs`).
    """

    id: str
    prompt: Written
    chosen: Completion
    rejected: Completion
    prompt_ids: tuple[int, ...] | None = None
    about: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({isinstance(w, str) for w in (self.prompt, self.chosen.written, self.rejected.written)}) > 1:
            raise ValueError(f"pair {self.id} mixes text and messages")
