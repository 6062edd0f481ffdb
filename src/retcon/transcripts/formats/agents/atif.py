"""ATIF, the Agent Trajectory Interchange Format of Harbor, in which Terminal-Bench's runs are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retcon.transcripts.reading.items import APART, text_of, with_text, without_words
from retcon.transcripts.reading.itemwise import (
    Item,
    ItemList,
    Itemwise,
    Pieces,
    arguments_of,
    beside_words,
    loose_words,
    part_of,
    parts,
    some_id,
    string,
)
from retcon.transcripts.reading.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.registry import register
from retcon.transcripts.types import Json

_REASONING = "reasoning_content"
_IDS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_NUMBER = "step_id"
_SUBAGENTS = "subagent_trajectories"
_THOUGHT = "thought"
"""Beside words: that they are what was thought."""


class Atif(Itemwise):
    """A step of the agent has its `message`, `reasoning_content` (words before it), `tool_calls`, and what these gave
    in `observation`. After a repair the steps are numbered anew, and the ids of their tokens emptied. A subagent's
    trajectory that is held in one is a transcript of its own."""

    name = "atif"
    aliases = ("harbor",)
    needs = frozenset({_NUMBER})
    marks = (
        "schema_version", "steps", _NUMBER, "source", "message", _REASONING, "tool_calls", "function_name",
        "observation", "source_call_id", "agent", "final_metrics",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(_NUMBER in item and "source" in item and item.get("tool_calls") for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(_NUMBER in item and item.get("source") == "agent" and "message" in item for item in items)

    def find_all(self, record: Json) -> Sequence[ItemList]:
        """The trajectory's own steps, and those of the subagents' trajectories beside them."""
        found = super().find_all(record)
        return [one for own in found for one in (own, *self._of_subagents(record, own.path[:-1]))]

    def _of_subagents(self, record: Json, path: Sequence[str | int]) -> Iterator[ItemList]:
        holder: Json = record
        for key in path:
            holder = part_of(holder, str(key))
        listed = holder.get(_SUBAGENTS) if isinstance(holder, dict) else None
        for n, one in enumerate(listed if isinstance(listed, list) else []):
            for own in self.find_all(one):
                yield own._replace(path=(*path, _SUBAGENTS, n, *own.path))

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        for item in items:
            text, calls, outputs = text_of(item.get("message")), _calls(item), _outputs(item)
            if item.get("source") != "agent":
                pieces.told(item, text, role="system" if item.get("source") == "system" else "user")
                continue
            thought = string(item.get(_REASONING))
            if thought:
                pieces.said(item, thought + APART, moved=[], apart=True, beside={_THOUGHT: True})
            pieces.said(item, text, moved=[] if calls else None, apart=not thought)
            if calls:
                pieces.called(item, calls)
            if outputs:
                pieces.answered(None, outputs)
        return pieces.all

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        """The fix's step, with the words that it is to have and what was thought before these."""
        thoughts = [piece for piece in pieces if _THOUGHT in beside_words([piece])]
        words = loose_words([piece for piece in pieces if piece not in thoughts])
        items = [item for piece in pieces for item in parts(piece)]
        return [_with_words(item, thoughts, words) for item in items if isinstance(item, dict)]

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        return {**item, "message": without_words(item.get("message"), cuts)} if isinstance(item, dict) else item

    def forgotten(self, item: Json) -> Json:
        """The prompts of later steps were others."""
        metrics = part_of(item, "metrics")
        stale: dict[str, Json] = {key: [] for key in _IDS if metrics.get(key)}
        return {**item, "metrics": {**metrics, **stale}} if stale and isinstance(item, dict) else item

    def renewed(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        numbers = [item.get(_NUMBER) for item in before]
        if numbers != [*range(1, len(before) + 1)]:
            return items
        return [
            item if not isinstance(item, dict) or item[_NUMBER] == n else {**item, _NUMBER: n}
            for n, item in enumerate(items, 1)
        ]


def _with_words(item: Item, thoughts: Sequence[Piece], words: str | None) -> Json:
    reasoning = {_REASONING: thoughts[0].text.removesuffix(APART)} if thoughts else {}
    kept = {key: value for key, value in item.items() if key != _REASONING or reasoning or not value}
    told = {} if words is None else {"message": with_text(item.get("message"), words)}
    return {**kept, **told, **reasoning}


def _calls(item: Item) -> list[Call]:
    listed = item.get("tool_calls")
    return [
        Call(
            string(one.get("function_name"), "python"), arguments_of(one.get("arguments")),
            id=some_id(one.get("tool_call_id")),
        )
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    ]  # fmt: skip


def _outputs(item: Item) -> list[ToolOutput]:
    results = part_of(item, "observation").get("results")
    return [_output(one) for one in (results if isinstance(results, list) else []) if isinstance(one, dict)]


def _output(result: Item) -> ToolOutput:
    return ToolOutput(text_of(result.get("content")), some_id(result.get("source_call_id")))


register(Atif())
