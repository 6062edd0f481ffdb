"""Pydantic AI's message history, as `ModelMessagesTypeAdapter` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from retcon.transcripts.items import APART, Thought, as_text, text_of
from retcon.transcripts.itemwise import Blockwise, Item, ItemList, flagged_output, read_call, some_id, string
from retcon.transcripts.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.types import Json
from retcon.transcripts.verdicts import UNCLEAR, Verdict

_CALLS, _RETURNS = ("tool-call", "builtin-tool-call"), ("tool-return", "builtin-tool-return")
_RETRY, _THINKING = "retry-prompt", "thinking"
_ROLES = {"system-prompt": "system", "user-prompt": "user", _RETRY: "user", "retry-feedback": "user"}
"""Parts of a request that are messages, and their roles."""
_WORDS = ("text", _THINKING)
_FAILED = ("failed", "retried")
_NOT_RUN = ("denied", "interrupted")
_OF_WORDS = ("id", "citations")
"""Beside words: by what the provider finds its own copy, and the places in them that sources stand for."""


class PydanticAI(Blockwise):
    """Requests and responses of Pydantic AI.

    A request has the prompt and the results of calls; a response words and calls. A `retry-prompt` that names a
    tool is a failure, as is an `outcome` that says so ("success" is its default); a call that was denied or
    interrupted did not run."""

    name = "pydantic-ai"
    needs = frozenset({"parts"})
    stale = MappingProxyType({("provider_details", "logprobs"): None})
    marks = (
        "kind", "parts", "part_kind", "request", "response", "user-prompt", "system-prompt", "tool-call", "tool-return",
        _RETRY, "tool_name", "tool_call_id",
    )  # fmt: skip

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(_kind(part) in _CALLS for item in items for part in self.blocks(item))

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(_kind(part) for item in items if item.get("kind") == "response" for part in self.blocks(item))

    def find(self, record: Json) -> ItemList | None:
        found = super().find(record)
        instructions = [string(item.get("instructions")) for item in found.items] if found else []
        return found._replace(system=next(filter(None, instructions), "")) if found else None

    def blocks(self, item: Item) -> Sequence[Json]:
        found = item.get("parts")
        return found if isinstance(found, list) else []

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        return {**item, "parts": list(blocks)}

    def kind(self, block: Json, item: Item) -> PieceKind:
        kind = _kind(block)
        if kind in _CALLS:
            return "call"
        if kind in _RETURNS or (isinstance(block, dict) and kind == _RETRY and block.get("tool_name")):
            return "result"
        return "assistant" if item.get("kind") == "response" else "context"

    def role(self, block: Json, item: Item) -> str:
        return _ROLES.get(_kind(block), "")

    def call(self, block: Item) -> Call:
        return read_call(block, "tool_name", "args", "tool_call_id")

    def output(self, block: Item, item: Item) -> ToolOutput:
        content, own_id = block.get("content"), some_id(block.get("tool_call_id"))
        outcome = block.get("outcome")
        if outcome in _NOT_RUN:
            return ToolOutput(as_text(content), own_id, Verdict("ok", UNCLEAR), typed=True)
        failed = _kind(block) == _RETRY or outcome in _FAILED
        if failed and isinstance(content, list):  # of what is wrong with the arguments
            return ToolOutput(as_text(content), own_id, Verdict("malformed", "status"), typed=True)
        return flagged_output(as_text(content), own_id, failed=failed or None)

    def words(self, block: Json) -> str:
        part, kind = block if isinstance(block, dict) else {}, _kind(block)
        if kind in _ROLES:
            return text_of(part.get("content")) or as_text(part.get("content"))
        text = string(part.get("content")) if kind in _WORDS else ""
        if kind != _THINKING:
            return text
        return Thought(text + APART if text and not part.get("signature") else "")

    def with_words(self, block: Json, words: str) -> Json:
        part = block if isinstance(block, dict) else {}
        text = words.removesuffix(APART) if _kind(block) == _THINKING else words
        return {**{key: None if key in _OF_WORDS else value for key, value in part.items()}, "content": text}


def _kind(part: Json) -> str:
    return string(part.get("part_kind")) if isinstance(part, dict) else ""


FORMAT = PydanticAI()
