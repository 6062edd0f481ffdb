"""ATIF, the Agent Trajectory Interchange Format of Harbor, in which Terminal-Bench's runs are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retcon.transcripts.items import replaced, text_of
from retcon.transcripts.itemwise import Item, ItemList, Steps, called, objects, part_of, some_id, string
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
    trajectory that is held in one is a transcript of its own, and goes with the only call that leads to it."""

    name = "atif"
    text = "message"
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
        for n, one in enumerate(_subagents(_at(record, path))):
            for own in self.find_all(one):
                yield own._replace(path=(*path, _SUBAGENTS, n, *own.path))

    def with_items(self, record: Json, place: ItemList, items: list[Json]) -> Json:
        """Return the record with these steps and their number."""
        new, path = super().with_items(record, place, items), place.path[:-1]
        metrics = part_of(_at(new, path), _METRICS)
        if metrics.get(_TOTAL) != len(place.items):
            return new
        return replaced(new, (*path, _METRICS), {**metrics, _TOTAL: len(items)})

    def settled(self, record: Json, before: Json) -> Json:
        """Remove subagents' trajectories that only removed calls led to."""
        for own in super().find_all(before):
            path = own.path[:-1]
            new, old = _at(record, path), _at(before, path)
            pairs = [*zip(_subagents(new), _subagents(old), strict=True)]
            if not pairs:
                continue
            inner = [self.settled(one, was) for one, was in pairs]
            named = _named(_listed(new.get(str(own.path[-1]))))
            gone = _named(own.items) - named
            for one, (_, was) in zip(inner, pairs, strict=True):
                gone |= self._points(was) - self._points(one) - _held(was)
            left = self._left(inner, named, gone) if gone else inner
            record = replaced(record, path, {**new, _SUBAGENTS: left})
        return record

    def _points(self, record: Json) -> set[str]:
        """The ids that a trajectory and those within it point to."""
        return _named([step for own in self.find_all(record) for step in own.items])

    def _left(self, listed: Sequence[Json], named: set[str], gone: set[str]) -> list[Json]:
        """The subagents' trajectories without those that only what is gone leads to. named, gone: the ids that the
        steps that stay, and those that went, point to."""
        ids = [_id(one) for one in listed]
        points = [self._points(one) for one in listed]
        leads = {own: to for own, to in zip(ids, points, strict=True) if own}
        gone = _reached(gone, leads)
        stay = [to for own, to in zip(ids, points, strict=True) if own not in gone]
        gone -= _reached(named.union(*stay), leads)
        return [one for own, one in zip(ids, listed, strict=True) if own not in gone]

    def speaker(self, item: Item) -> str:
        source = item.get("source")
        return "assistant" if source == "agent" else "system" if source == "system" else "user"

    def thought(self, item: Item) -> str:
        return string(item.get(_REASONING))

    def with_thought(self, item: Item, thought: str | None, home: Item) -> Json:
        kept = {key: value for key, value in item.items() if key != _REASONING or thought is not None or not value}
        return kept if thought is None else {**kept, _REASONING: thought}

    def calls(self, item: Item) -> list[Call]:
        listed = objects(item.get("tool_calls"))
        return [called(one, "function_name", "arguments", "tool_call_id") for one in listed]

    def outputs(self, item: Item) -> list[ToolOutput]:
        return [ToolOutput(text_of(one.get("content")), some_id(one.get("source_call_id"))) for one in _results(item)]

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


def _at(record: Json, path: Sequence[str | int]) -> Item:
    """The object at a path."""
    for key in path:
        if isinstance(record, list) and isinstance(key, int):
            record = record[key]
        else:
            record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _subagents(record: Json | Item) -> list[Json]:
    """The trajectories that one holds."""
    return _listed(record.get(_SUBAGENTS)) if isinstance(record, Mapping) else []


def _id(trajectory: Json) -> str:
    return string(trajectory.get(_ID)) if isinstance(trajectory, dict) else ""


def _held(record: Json) -> set[str]:
    """Return the ids of trajectories that a trajectory holds.

    Those within these too; references within it can mean no others."""
    return {id for one in _subagents(record) for id in (_id(one), *_held(one))}


def _named(steps: Sequence[Json]) -> set[str]:
    """Return the ids of subagents' trajectories that results refer to."""
    listed = [one.get("subagent_trajectory_ref") for step in steps for one in _results(step)]
    refs = [ref for refs in listed if isinstance(refs, list) for ref in refs if isinstance(ref, dict)]
    return {own for ref in refs if (own := string(ref.get(_ID)))}  # one that is kept elsewhere may have none


def _reached(names: set[str], leads: Mapping[str, set[str]]) -> set[str]:
    """The names, and all that these lead to."""
    found, waiting = set(names), list(names)
    while waiting:
        new = leads.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _results(item: Json) -> Sequence[Item]:
    return objects(part_of(item, "observation").get("results"))


FORMAT = Atif()
