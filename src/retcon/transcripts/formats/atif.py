"""ATIF, Harbor's Agent Trajectory Interchange Format, used by Terminal-Bench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from types import MappingProxyType

from retcon.transcripts.items import replace_at, text_of
from retcon.transcripts.itemwise import Item, ItemList, Steps, lists, objects, part_of, read_call, some_id, string
from retcon.transcripts.pieces import Call, ToolOutput
from retcon.transcripts.types import Json

_REASONING = "reasoning_content"
_IDS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_NUMBER = "step_id"
_SUBAGENTS, _ID = "subagent_trajectories", "trajectory_id"
_METRICS, _TOTAL = "final_metrics", "total_steps"


class Atif(Steps):
    """Steps of Harbor's trajectory format ATIF.

    A step of the agent has its `message`, `reasoning_content` (words before it), `tool_calls`, and their results in
    `observation`. After a repair the steps are numbered anew, and the ids of their tokens emptied. A subagent's
    trajectory that is held in one is a transcript of its own, and goes if no call that stays leads to it."""

    name = "atif"
    text = "message"
    aliases = ("harbor",)
    needs = frozenset({_NUMBER})
    stale = MappingProxyType({("metrics", key): [] for key in _IDS})
    marks = (
        "schema_version", "steps", _NUMBER, "source", "message", _REASONING, "tool_calls", "function_name",
        "observation", "source_call_id", "agent", "final_metrics",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(_NUMBER in item and "source" in item and item.get("tool_calls") for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(_NUMBER in item and item.get("source") == "agent" and "message" in item for item in items)

    def find_all(self, record: Json) -> Sequence[ItemList]:
        """Find the trajectory's own steps, and those of the subagents beside it."""
        found = super().find_all(record)
        return [one for own in found for one in (own, *self._of_subagents(record, own.path[:-1]))]

    def _of_subagents(self, record: Json, path: Sequence[str | int]) -> Iterator[ItemList]:
        for n, one in enumerate(objects(_at(record, path).get(_SUBAGENTS))):
            for own in self.find_all(one):
                yield own._replace(path=(*path, _SUBAGENTS, n, *own.path))

    def with_items(self, record: Json, place: ItemList, items: list[Json]) -> Json:
        """Return the record with these steps and their number."""
        new, path = super().with_items(record, place, items), place.path[:-1]
        metrics = part_of(_at(new, path), _METRICS)
        if metrics.get(_TOTAL) != len(place.items):
            return new
        return replace_at(new, (*path, _METRICS), {**metrics, _TOTAL: len(items)})

    def finish_record(self, record: Json, before: Json) -> Json:
        """Remove subagents' trajectories that only removed calls led to."""
        held = dict(_held(before))
        free = held.keys() - {own for one in (before, *held.values()) for own in _named(one)}
        gone = _reached(before, free) - _reached(record, free)
        return _left(record, gone) if gone else record

    def speaker(self, item: Item) -> str:
        source = item.get("source")
        return "assistant" if source == "agent" else "system" if source == "system" else "user"

    def thought(self, item: Item) -> str:
        return string(item.get(_REASONING))

    def with_thought(self, item: dict[str, Json], thought: str | None, home: Item) -> dict[str, Json]:
        kept = {key: value for key, value in item.items() if key != _REASONING or thought is not None or not value}
        return kept if thought is None else {**kept, _REASONING: thought}

    def calls(self, item: Item) -> list[Call]:
        listed = objects(item.get("tool_calls"))
        return [read_call(one, "function_name", "arguments", "tool_call_id") for one in listed]

    def outputs(self, item: Item) -> list[ToolOutput]:
        return [ToolOutput(text_of(one.get("content")), some_id(one.get("source_call_id"))) for one in _results(item)]

    def update_references(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        numbers = [item.get(_NUMBER) for item in before]
        if numbers != [*range(1, len(before) + 1)]:
            return items
        return [
            item if not isinstance(item, dict) or item[_NUMBER] == n else {**item, _NUMBER: n}
            for n, item in enumerate(items, 1)
        ]


def _at(record: Json, path: Sequence[str | int]) -> Item:
    """Return the object at a path."""
    for key in path:
        if isinstance(record, list) and isinstance(key, int):
            record = record[key]
        else:
            record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def _held(record: Json) -> Iterator[tuple[str, Item]]:
    """Yield the trajectories that one holds, at any depth, by their ids."""
    for one in objects(record.get(_SUBAGENTS)) if isinstance(record, dict) else ():
        yield string(one.get(_ID)), one
        yield from _held(one)


def _named(trajectory: Json) -> set[str]:
    """Return the ids of subagents' trajectories that its results refer to."""
    found = [step for _, items in lists(trajectory) for step in items]
    refs = [ref for step in found for one in _results(step) for ref in objects(one.get("subagent_trajectory_ref"))]
    return {string(ref.get(_ID)) for ref in refs} - {""}  # one that is kept elsewhere may have none


def _reached(record: Json, free: Set[str]) -> set[str]:
    """Return the ids that a trajectory's results lead to, or the free ones."""
    held = dict(_held(record))
    found = set[str]()
    waiting = _named(record) | free
    while waiting:
        found |= waiting
        waiting = {own for id in waiting if id in held for own in _named(held[id])} - found
    return found


def _left(record: Json, gone: Set[str]) -> Json:
    """Drop the trajectories of these ids from a record."""
    if not isinstance(record, dict) or not record.get(_SUBAGENTS):
        return record
    stay = [one for one in objects(record[_SUBAGENTS]) if string(one.get(_ID)) not in gone]
    return {**record, _SUBAGENTS: [_left(one, gone) for one in stay]}


def _results(item: Json) -> Sequence[Item]:
    return objects(part_of(item, "observation").get("results"))


FORMAT = Atif()
