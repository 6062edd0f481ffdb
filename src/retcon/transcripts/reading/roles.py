"""Who speaks, as people's files name it, in small letters, with a capital or in capitals; and whether it is learnt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from retcon.transcripts.types import Json

if TYPE_CHECKING:
    from retcon.transcripts.reading.pieces import PieceKind

_MODEL = ("assistant", "gpt", "model", "chatgpt", "bot", "ai")
_TOOL = (
    "tool", "function", "observation", "ipython", "execution", "environment",
    "tool_response", "function_response", "function-response", "tool_result",
)  # fmt: skip
_CALL = ("function_call", "function-call", "tool_call")
_KEYS = ("role", "from", "type", "kind", "action")
_INSIDE = ("data", "kwargs", "llm_message", "payload")
"""Where LangChain, OpenHands and Codex have the message of an item."""


def _written(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield from (name, name.capitalize(), name.upper(), name.title().replace("gpt", "GPT"))


SAID = frozenset(_written(_MODEL))
SYSTEM = frozenset(_written(("system", "developer")))
KINDS: dict[Json, PieceKind] = {
    **dict.fromkeys(SAID, "said"), **dict.fromkeys(_written(_TOOL), "output"), **dict.fromkeys(_written(_CALL), "call"),
}  # fmt: skip
"""What a message of a role is; of a role that is none of these, the model was told it."""
_BLOCKS = ("text", "code", "thought", "reasoning")
"""MathCoder's, beside `execution`."""
ROLES: frozenset[str] = SYSTEM.union(_written((*_MODEL, *_TOOL, *_CALL, "user", "human", *_BLOCKS)))
"""All that messages are known to have."""
_SYSTEMS = SYSTEM | {"SystemMessage", "SystemMessageChunk", "SystemPromptEvent"}


def role_of(item: Json) -> str:
    """`system`, `tool` or `user`, for an item of any format that the model is given. Of a group, the first."""
    if isinstance(item, list):
        return role_of(item[0]) if item else "user"
    if not isinstance(item, dict):
        return "user"
    places = (item, *(inner for name in _INSIDE if isinstance(inner := item.get(name), dict)))
    names = (place.get(key) for place in places for key in _KEYS)
    known = {"system" if name in _SYSTEMS else KINDS.get(name, "user") for name in names if isinstance(name, str)}
    alone = isinstance(item.get("system_prompt"), str) and not any(isinstance(item.get(key), str) for key in _KEYS)
    if "system" in known or alone:  # the key alone makes a step of smolagents
        return "system"
    return "tool" if "output" in known else "user"


def speaker_of(message: Json) -> str:
    """The role of a message that may be the model's own too: `system`, `assistant`, `tool` or `user`."""
    role = message.get("role", message.get("from")) if isinstance(message, dict) else None
    return "assistant" if isinstance(role, str) and role in SAID else role_of(message)


def is_unlearnt(item: Json) -> bool:
    """Whether a message, or one of a group, is not to be learnt: its `weight` is 0, as in OpenAI's fine-tuning; a step
    of ATIF was copied from another trajectory, or no model was asked for it."""
    if isinstance(item, list):
        return any(map(is_unlearnt, item))
    if not isinstance(item, dict):
        return False
    return item.get("weight") == 0 or item.get("is_copied_context") is True or item.get("llm_call_count") == 0
