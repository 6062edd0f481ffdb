"""What a foreign record tells the model before its first turn: system prompt, earlier turns, question, and what goes
with the question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from retcon.chat.types import Told
from retcon.core.errors import RecordError
from retcon.core.schema import ANYTHING, ToolSpec
from retcon.core.types import Turn
from retcon.train.datasets.messages import words_of
from retcon.transcripts.reading.items import QUESTIONS, context_of, find_items, system_of
from retcon.transcripts.reading.roles import speaker_of
from retcon.transcripts.types import Json, Speakers

ANSWERS = ("completion", "response", "output", "generation", "solution", "answer")
"""Fields of which the names say that what is in them answers something."""
_BESIDE: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "question": (("context",), ()), "instruction": ((), ("input", "context")),
}  # fmt: skip
"""What else is asked, by the field of the question: the fields that come before it, and after."""
_ROLES = "(system|user|assistant)\n"
_TURNS = (re.compile(rf"<\|im_start\|>{_ROLES}"), re.compile(rf"^{_ROLES}", re.MULTILINE))
"""How turns begin in a prompt in Qwen's template (slime), and where a decoder left out the markers (verl)."""


def tools_of(record: Json) -> tuple[ToolSpec, ...] | None:
    """The tools that the model was shown, None where the record does not say. Raises RecordError for other values."""
    listed = record.get("tools") if isinstance(record, dict) else None
    try:
        listed = json.loads(listed) if isinstance(listed, str) and listed else listed
    except ValueError as error:
        raise RecordError(f"'tools' is text that is not JSON: {error}") from None
    return None if listed in (None, "") else tuple(map(_tool, listed if isinstance(listed, list) else [listed]))


def _tool(recorded: Json) -> ToolSpec:
    """A tool as OpenAI's APIs, Anthropic's and MCP list it, or its name alone."""
    outer = recorded if isinstance(recorded, dict) else {"name": recorded}
    inner = outer.get("function", outer)
    if not isinstance(inner, dict) or not isinstance(name := inner.get("name", inner.get("type")), str):
        wanted = '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}'
        raise RecordError(f"'tools' has {json.dumps(recorded):.80}, where a tool belongs: {wanted}")
    schema = next((inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key)), ANYTHING)
    own = outer if inner is not outer else None
    return ToolSpec(name, str(inner.get("description") or ""), schema if isinstance(schema, dict) else ANYTHING, own)


def told_before(record: Json, speakers: Speakers) -> list[Told]:
    """What the model was told before its first turn, with the roles that the record knows."""
    found = find_items(record)
    told = list(speakers.before)
    texts = [text for _, text in told]
    context = context_of(record)
    in_items = found is not None and found[0] != ("completion",) and context in map(words_of, found[1])
    before = [] if in_items else asked_of(record)
    if context and texts[:1] == [context] and (not in_items or context in texts[1:]):
        told = told[1:]  # in `before`, or repeated by the list
    elif told:
        before = []  # the list is all that was told
    before += told
    if speakers.system and not any(speakers.system in text for _, text in before):
        return [("system", speakers.system), *before]
    system = system_of(record)
    if system and not any(kind == "system" or system in text for kind, text in before):
        before.insert(0, ("system", system))
    return before


def asked_of(record: Json) -> list[Told]:
    """What `context_of` finds, as messages, with all that belongs to the question."""
    if not isinstance(record, dict):
        return []
    if isinstance(prompt := record.get("prompt"), list):
        return [(speaker_of(message), words_of(message)) for message in prompt if isinstance(message, dict)]
    question = context_of(record)
    name = next((name for name in QUESTIONS if question and record.get(name) == question), "")
    first, after = _BESIDE.get(name, ((), ()))
    parts = [*(record.get(other) for other in first), question, *(record.get(other) for other in after)]
    asked = "\n\n".join(part for part in parts if _is_text(part) and (part is question or part not in question))
    return [*_history_of(record), *(_turns_in(asked) or [("user", asked)] if asked else [])]


def _turns_in(prompt: str) -> list[Told]:
    """The messages of a prompt that opens the model's turn, as rollout dumps have it; none where it is another text."""
    for turns in _TURNS:
        before, *parts = turns.split(prompt)
        if before or parts[-2:-1] != ["assistant"] or parts[-1].strip() not in ("", "<think>"):
            continue
        texts = (text.removesuffix("\n").removesuffix("<|im_end|>") for text in parts[1:-2:2])
        return list(zip(parts[:-2:2], texts, strict=True))
    return []


def refuse_unasked(record: Json) -> None:
    """Raises RecordError where nothing comes before an answer, as the question is in a field of an unknown name. Text
    in a field that does not say what it is (`text`, `content`, `code`) may be meant so."""
    if not isinstance(record, dict):
        return
    found = find_items(record)
    name = found[0][-1] if found and found[0] else next((name for name in ANSWERS if name in record), "")
    if name in ANSWERS:
        raise RecordError(
            f"nothing is asked before '{name}': the question is looked for in {', '.join(QUESTIONS)}, and the record "
            f"has {', '.join(list(record)[:8])}; name it `prompt`, or give text that nobody asked for as `text`"
        )


class HalfCall(RecordError):
    """A call lacks its result, or a result its call."""


def refuse_unanswered(turns: Sequence[Turn], told: Iterable[Told]) -> None:
    """Raises HalfCall for a call without a result before the last turn, and for a result without a call."""
    for number, turn in enumerate(turns[:-1], 1):
        seen = {observation.call_id for observation in turn.observations}
        if (call := next((call for call in turn.calls if call.id not in seen), None)) is not None:
            said = f"the call of '{call.name}' in the model's turn {number} has no result, and the conversation goes on"
            raise HalfCall(f"{said}: add the tool's message, or take the call out")
    if (text := next((text for role, text in told if role == "tool"), None)) is not None:
        raise HalfCall(f"a tool's result answers no call, found {text!r:.60}: add the call before it, or take it out")


def _history_of(record: Mapping[str, Json]) -> list[Told]:
    """Alpaca's earlier turns, pairs of what was asked and what was answered."""
    history = record.get("history")
    pairs = history if isinstance(history, list) else []
    if not all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in pairs):
        return []
    return [(role, str(text)) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]


def _is_text(value: Json) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())
