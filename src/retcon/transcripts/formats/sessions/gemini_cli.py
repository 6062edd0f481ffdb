"""Sessions of Gemini CLI: messages with the calls and what they gave, in one document or one a line."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.failures.rules import UNCLEAR, Verdict
from retcon.transcripts.reading.items import as_text, text_of
from retcon.transcripts.reading.itemwise import (
    Item,
    ItemList,
    Steps,
    called,
    flagged,
    objects,
    part_of,
    some_id,
    string,
)
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.types import Json

_CALLS, _THOUGHTS, _ANSWER = "toolCalls", "thoughts", "functionResponse"
_REWOUND, _SET = "$rewindTo", "$set"


class GeminiCli(Steps):
    """A message of `gemini` has its calls in `toolCalls`, each with its `result` and `status` (which speaks where it is
    "error"; "success" is what it has whatever a program did); the user's message after it may repeat the results. Lines
    with one `id` are one message, the last of them; those that a `$rewindTo` took back are nobody's word."""

    name = "gemini-cli"
    needs = frozenset({"type"})
    in_lines = True
    marks = ("sessionId", "projectHash", "gemini", _CALLS, _THOUGHTS, "resultDisplay", _REWOUND)

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(item.get("type") == "gemini" and self.calls(item) for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(item.get("type") == "gemini" and "content" in item for item in items)

    def find(self, record: Json) -> ItemList | None:
        found = super().find(record)
        return found._replace(items=_last_of_each(found.items)) if found else None

    def speaker(self, item: Item) -> str | None:
        content = item.get("content")
        repeats = isinstance(content, list) and any(part_of(part, _ANSWER) for part in content)
        if item.get("type") == "gemini":
            return "assistant"
        return "user" if item.get("type") == "user" and not repeats else None

    def speakers(self, items: Sequence[Item]) -> Sequence[str | None]:
        said = [self.speaker(item) for item in items]
        for n, item in enumerate(items):
            if _REWOUND in item:
                start = next((at for at in range(n) if items[at].get("id") == item[_REWOUND]), 0)
                said[start:n] = [None] * (n - start)
        return said

    def thought(self, item: Item) -> str:
        thoughts = [
            (string(one.get("subject")), string(one.get("description"))) for one in objects(item.get(_THOUGHTS))
        ]
        return "\n\n".join(map("\n".join, thoughts))

    def with_thought(self, item: Item, thought: str | None, home: Item) -> Json:
        if thought is None:
            return {**item, _THOUGHTS: []} if item.get(_THOUGHTS) else item
        same = self.thought(home) == thought
        return {**item, _THOUGHTS: home[_THOUGHTS] if same else [{"subject": "", "description": thought}]}

    def calls(self, item: Item) -> list[Call]:
        return [called(one, "name", "args", "id") for one in objects(item.get(_CALLS))]

    def outputs(self, item: Item) -> list[ToolOutput]:
        return [
            _output(one) for one in objects(item.get(_CALLS)) if one.get("result") or one.get("status") != "executing"
        ]

    def renewed(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        """A copy of all messages in an update is emptied: the lines are what is left."""
        return [
            {**item, _SET: {**part_of(item, _SET), "messages": []}}
            if isinstance(item, dict) and part_of(item, _SET).get("messages")
            else item
            for item in items
        ]


def _output(call: Item) -> ToolOutput:
    own_id, status, result = some_id(call.get("id")), call.get("status"), call.get("result")
    parts = result if isinstance(result, list) else [result]
    answers = [part_of(part_of(part, _ANSWER), "response") for part in parts]
    given = [as_text(one.get("output", one.get("error", one or None))) for one in answers]
    text = "".join(given) + text_of(result) or string(call.get("resultDisplay"))
    if status == "cancelled":
        return ToolOutput(text, own_id, Verdict("ok", UNCLEAR), typed=True)
    return flagged(text, own_id, failed=status == "error" or any(one.get("error") for one in answers) or None)


def _last_of_each(items: Sequence[Item]) -> list[Item]:
    """The lines, of a message that was written several times the last, where the first stood."""
    last = {own: item for item in items if isinstance(own := item.get("id"), str)}
    once = dict.fromkeys(last, True)
    return [
        last[own] if isinstance(own, str) else item
        for item in items
        if not isinstance(own := item.get("id"), str) or once.pop(own, False)
    ]


FORMAT = GeminiCli()
