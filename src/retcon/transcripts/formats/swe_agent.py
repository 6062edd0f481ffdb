"""SWE-agent's `.traj`: steps of thought, action and observation, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from retcon.purify.offline import RepairResult
from retcon.purify.words import rewrite
from retcon.transcripts.items import speaker_of, text_of
from retcon.transcripts.itemwise import WORDS, Item, ItemList, ItemwiseReading, Steps, beside_words, string
from retcon.transcripts.pieces import Call, ToolOutput
from retcon.transcripts.types import Json, Reading

_REPEATED = ("query", "messages")
_THINKING = "thinking_blocks"
"""In the message of a step: what was thought before its words."""


class SweAgent(Steps):
    """A step is a call of a shell. `history` loses the messages of the steps that are taken out; the messages that a
    later step was given (`query`) are emptied, as they repeat what failed."""

    name = "swe-agent"
    needs = frozenset({"action"})
    stale = MappingProxyType({(name,): [] for name in _REPEATED})
    marks = ("trajectory", "action", "observation", "response", "thought", "history", "info", "execution_time")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return all("action" in item and "observation" in item for item in items) and any("response" in i for i in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the steps, and the messages before them."""
        found = super().find(record)
        if found is None or not isinstance(record, dict):
            return found
        places = (record.get("history"), *(found.items[0].get(key) for key in _REPEATED))
        listed = next((place for place in places if isinstance(place, list) and place), [])
        head, _ = _rounds([message for message in listed if isinstance(message, dict)])
        asked = [(speaker_of(one), text_of(one.get("content"))) for one in head if isinstance(one, dict)]
        return found._replace(asked=asked)

    def read(self, record: Json, id: str) -> Reading:
        place = self.find(record)
        if place is None:
            return super().read(record, id)  # which says what is missing
        return _SweReading(self, record, [place], id)

    def words(self, item: Item) -> str:
        """Return a step's words; without an action these are its response."""
        thought = string(item.get("thought"))
        return thought if _action(item) else string(item.get("response")) or thought

    def with_words(self, item: dict[str, Json], words: str) -> dict[str, Json]:
        if _action(item):
            return with_thought(item, words)
        return {**item, **{name: words for name in ("response", "thought") if item.get(name)}}

    def calls(self, item: Item) -> list[Call]:
        return [Call("bash", {"command": action})] if (action := _action(item)) else []

    def outputs(self, item: Item) -> list[ToolOutput]:
        return [ToolOutput(string(item.get("observation")))] if _action(item) else []


def _action(item: Item) -> str:
    return string(item.get("action")).strip("\n")


class _SweReading(ItemwiseReading):
    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        new = super().with_repairs(results)
        if not isinstance(new, dict) or not isinstance(history := new.get("history"), list):
            return new
        pieces = self.readings[0].spliced(results[0])
        places = {id(item): n for n, item in enumerate(self.places[0].items)}
        owners = {p.owner: beside_words([p]).get(WORDS) for p in pieces if p.kind == "assistant"}
        words_of = {owner: places.get(id(step), owner) for owner, step in owners.items()}
        messages = [m for m in history if isinstance(m, dict)]
        head, rounds = _rounds(messages)
        if len(rounds) != len(self.places[0].items):
            return {**new, "history": []}  # of another agent, or cut: its steps cannot be matched
        kept: list[Json] = []
        for n, step in zip(dict.fromkeys(p.owner for p in pieces), new["trajectory"], strict=True):
            reworded = _with_words_of(rounds[n][0], step, self.places[0].items[n])
            kept += [_with_thinking_of(reworded, rounds[words_of.get(n, n)][0]), *rounds[n][1:]]
        return {**new, "history": [*head, *kept]}


def _with_words_of(message: Json, step: Item, before: Item) -> Json:
    """Return a step's message with the step's new words."""
    if isinstance(message, dict) and "thought" in message:
        return with_thought(message, string(step.get("thought")))
    old = string(before.get("response"))
    return rewrite(message, old, string(step.get("response"))) if old else message


def _with_thinking_of(message: Json, reworded: Json) -> Json:
    """Return a step's message with the thought before its new words."""
    if message is reworded or not isinstance(message, dict) or not isinstance(reworded, dict):
        return message
    thinking = {_THINKING: reworded[_THINKING]} if _THINKING in reworded else {}
    return {key: value for key, value in {**message, **thinking}.items() if key != _THINKING or thinking}


def with_thought(item: dict[str, Json], words: str) -> dict[str, Json]:
    """Return a step or its message with another thought."""
    old = string(item.get("thought"))
    new = {**item, "thought": words}
    for key in ("response", "content"):
        if isinstance(text := item.get(key), str) and text.startswith(old):
            new[key] = words + text[len(old) :]
    return new if "thought" in item else item


def _rounds(messages: Sequence[dict[str, Json]]) -> tuple[list[Json], list[list[Json]]]:
    """Split messages into those before the first step, and those of each step."""
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
