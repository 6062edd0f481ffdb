"""Who speaks in a message, as people's files name it, in small letters, with a capital or in capitals."""

from __future__ import annotations

from collections.abc import Iterable

from retcon.transcripts.reading.pieces import PieceKind
from retcon.transcripts.types import Json

_MODEL = ("assistant", "gpt", "model", "chatgpt", "bot", "ai")
_TOOL = (
    "tool", "function", "observation", "ipython", "execution", "environment",
    "tool_response", "function_response", "function-response", "tool_result",
)  # fmt: skip
_CALL = ("function_call", "function-call", "tool_call")


def _written(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield from (name, name.capitalize(), name.upper(), name.title().replace("gpt", "GPT"))


SAID = frozenset(_written(_MODEL))
SYSTEM = frozenset(_written(("system", "developer")))
KINDS: dict[Json, PieceKind] = {
    **dict.fromkeys(SAID, "said"), **dict.fromkeys(_written(_TOOL), "output"), **dict.fromkeys(_written(_CALL), "call"),
}  # fmt: skip
"""What a message of a role is; of a role that is none of these, the model was told it."""
