"""SWE-agent's `.traj`: steps of thought, action and observation, and the messages that they are part of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from retcon.purify.offline import Purified
from retcon.purify.words import rewritten, without
from retcon.transcripts.items import speaker_of, text_of
from retcon.transcripts.itemwise import (
    Item,
    ItemList,
    Itemwise,
    ItemwiseReading,
    Pieces,
    beside_words,
    loose_words,
    parts,
    string,
)
from retcon.transcripts.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.types import Json, Reading

_REPEATED = ("query", "messages")
_STEP = "step"
"""Beside words: the place of the step that they are of."""
_THINKING = "thinking_blocks"
"""In the message of a step: what was thought before its words."""


class SweAgent(Itemwise):
    """A step is a call of a shell. `history` loses the messages of the steps that are taken out; the messages that a
    later step was given (`query`) are emptied, as they repeat what failed."""

    name = "swe-agent"
    needs = frozenset({"action"})
    marks = ("trajectory", "action", "observation", "response", "thought", "history", "info", "execution_time")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return all("action" in item and "observation" in item for item in items) and any("response" in i for i in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the steps of a record.

        What precedes them stands in `history`, or among the first step's input messages."""
        found = super().find(record)
        if found is None or not isinstance(record, dict):
            return found
        places = (record.get("history"), *(found.items[0].get(key) for key in _REPEATED))
        listed = next((place for place in places if isinstance(place, list) and place), [])
        head, _ = _rounds([message for message in listed if isinstance(message, dict)])
        told = [(speaker_of(message), text_of(message.get("content"))) for message in head if isinstance(message, dict)]
        return found._replace(asked=told)

    def read(self, record: Json, id: str) -> Reading:
        place = self.find(record)
        if place is None:
            return super().read(record, id)  # which says what is missing
        return _SweReading(self, record, [place], id)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        for n, item in enumerate(items):
            action = string(item.get("action")).strip("\n")
            if not action:
                pieces.said(item, _words(item), apart=True)
                continue
            pieces.said(item, string(item.get("thought")), moved=[], apart=True, beside={_STEP: n})
            pieces.called(item, [Call("bash", {"command": action})])
            pieces.answered(None, [ToolOutput(string(item.get("observation")))])
        return pieces.all

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        """The fix's step, with the thought that it is to have."""
        words = loose_words(pieces)
        items = [item for piece in pieces for item in parts(piece)]
        return items if words is None else [with_thought(item, words) for item in items]

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        """A step without an action is nothing but its words."""
        if not isinstance(item, dict):
            return item
        left = without(_words(item), cuts)
        return {**item, **{name: left for name in ("response", "thought") if item.get(name)}}

    def forgotten(self, item: Json) -> Json:
        repeated = [name for name in _REPEATED if isinstance(item, dict) and item.get(name)]
        return {**item, **{name: [] for name in repeated}} if isinstance(item, dict) and repeated else item


def _words(item: Item) -> str:
    return string(item.get("response")) or string(item.get("thought"))


class _SweReading(ItemwiseReading):
    def purified(self, results: Sequence[Purified]) -> Json:
        new = super().purified(results)
        if not isinstance(new, dict) or not isinstance(history := new.get("history"), list):
            return new
        pieces = self.readings[0].spliced(results[0])
        words_of = {p.owner: cast(int, beside_words([p]).get(_STEP, p.owner)) for p in pieces if p.kind == "said"}
        messages = [m for m in history if isinstance(m, dict)]
        head, rounds = _rounds(messages)
        if len(rounds) != len(self.places[0].items):
            return {**new, "history": []}  # of another agent, or cut: what belongs to which step cannot be told
        kept: list[Json] = []
        for n, step in zip(dict.fromkeys(p.owner for p in pieces), new["trajectory"], strict=True):
            said = _with_words_of(rounds[n][0], step, self.places[0].items[n])
            kept += [_with_thinking_of(said, rounds[words_of.get(n, n)][0]), *rounds[n][1:]]
        return {**new, "history": [*head, *kept]}


def _with_words_of(message: Json, step: Item, before: Item) -> Json:
    """Return a step's message with the step's new words."""
    if isinstance(message, dict) and "thought" in message:
        return with_thought(message, string(step.get("thought")))
    old = string(before.get("response"))
    return rewritten(message, old, string(step.get("response"))) if old else message


def _with_thinking_of(message: Json, said: Json) -> Json:
    """Return a step's message with the thought before its new words."""
    if message is said or not isinstance(message, dict) or not isinstance(said, dict):
        return message
    thinking = {_THINKING: said[_THINKING]} if _THINKING in said else {}
    return {key: value for key, value in {**message, **thinking}.items() if key != _THINKING or thinking}


def with_thought(item: Json, words: str) -> Json:
    """Return a step or its message with another thought."""
    if not isinstance(item, dict) or item.get("thought", words) == words:
        return item
    old = string(item.get("thought"))
    new = {**item, "thought": words}
    for key in ("response", "content"):
        if isinstance(text := item.get(key), str) and text.startswith(old):
            new[key] = words + text[len(old) :]
    return new


def _rounds(messages: Sequence[dict[str, Json]]) -> tuple[list[Json], list[list[Json]]]:
    """What stands before the first step; then the messages of each."""
    head: list[Json] = []
    rounds: list[list[Json]] = []
    for message in messages:
        if message.get("role") == "assistant" and not message.get("is_demo"):
            rounds.append([message])
        elif rounds:
            rounds[-1].append(message)
        else:
            head.append(message)
    return head, rounds


FORMAT = SweAgent()
