"""Items of OpenAI's Responses API: in a request's `input`, a response's `output`, and NeMo-Gym's rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.failures.rules import Verdict
from retcon.transcripts.reading.items import text_of, without_words, words_of
from retcon.transcripts.reading.itemwise import (
    Item,
    ItemList,
    Itemwise,
    Pieces,
    arguments_of,
    lists,
    part_of,
    some_id,
    string,
)
from retcon.transcripts.reading.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.reading.roles import speaker_of
from retcon.transcripts.registry import register
from retcon.transcripts.types import Json

_CALLS = {"function_call", "custom_tool_call", "local_shell_call", "shell_call"}
_BOTH = {"code_interpreter_call", "mcp_call"}
"""Items that hold the call and what it gave."""
_OUTPUTS = {f"{name}_output" for name in _CALLS}
_TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_OWN = _CALLS | _BOTH | _OUTPUTS
_WORDS = {"message", "reasoning"}


class Responses(Itemwise):
    """A call and its output are items of their own, joined by `call_id`; `code_interpreter_call` is both. Reasoning
    and words stay with the call that follows them."""

    name = "responses"
    aliases = ("nemo-gym",)
    needs = frozenset({"type"})
    marks = (*_CALLS, *_BOTH, *_OUTPUTS, "call_id", "reasoning", "output_text", "responses_create_params")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(string(item.get("type")) in _OWN for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        typed = all(string(item.get("type"), "message") in _WORDS for item in items)
        return typed and any(item.get("role") == "assistant" and "content" in item for item in items)

    def find(self, record: Json) -> ItemList | None:
        """The list with the most calls: NeMo-Gym has the request's beside the response's."""
        found = [(path, items) for path, items in lists(record) if self.has_calls(items)]
        found = found or [(path, items) for path, items in lists(record) if self.is_plain(items)][-1:]
        if not found:
            return None
        path, items = max(found, key=lambda one: sum(string(i.get("type")) in _OWN for i in one[1]))
        request = part_of(record, "responses_create_params") or (record if isinstance(record, dict) else {})
        context = request.get("input") if tuple(path) not in ((), ("input",)) else None
        told = [context] if isinstance(context, str) else context if isinstance(context, list) else []
        texts = [t if isinstance(t, str) else _text(t) for t in told]
        asked = [(speaker_of(item), text) for item, text in zip(told, texts, strict=True) if text]
        return ItemList(path, items, "\n\n".join(texts), asked, _instructions(request))

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        for item in items:
            kind = string(item.get("type"), "message")
            if kind in _CALLS:
                pieces.called(item, [_call(item, kind)])
            elif kind in _OUTPUTS:
                pieces.answered(item, [_output(item)])
            elif kind in _BOTH:
                pieces.called(item, [_call(item, kind)])
                pieces.answered(None, [_own_output(item, kind)])
            elif kind == "reasoning" or (kind == "message" and item.get("role") == "assistant"):
                pieces.said(item, _words(item) or text_of(item.get("summary")))
            elif kind == "message":
                pieces.told(item, _text(item))
            else:
                pieces.beside(item)  # a search, an item reference
        return pieces.all

    def forgotten(self, item: Json) -> Json:
        """NeMo-Gym's items have the ids of all before them, and log-probs that were sampled after these."""
        if not isinstance(item, dict) or item.keys().isdisjoint(_TOKENS):
            return item
        return {**item, **{key: [] for key in _TOKENS if key in item}}

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        if isinstance(item, dict) and not _words(item):
            return {**item, "summary": without_words(item.get("summary"), cuts)}
        return super().without_words(item, cuts)


def _words(item: Json) -> str:
    return words_of(item.get("content")) if isinstance(item, dict) else ""


def _instructions(request: Item) -> str:
    """A request's own system prompt, before that of its items: text, or items (as prompts of the server give it)."""
    value = request.get("instructions")
    return "\n\n".join(map(_text, value)) if isinstance(value, list) else string(value)


def _text(item: Json) -> str:
    return text_of(item.get("content")) if isinstance(item, dict) else ""


def _call(item: Item, kind: str) -> Call:
    action = part_of(item, "action")
    arguments: object
    if kind == "code_interpreter_call":
        name, arguments = "code_interpreter", {"code": string(item.get("code"))}
    elif action:
        command = action.get("command", action.get("commands"))
        joined = (
            (" " if kind == "local_shell_call" else "\n").join(map(str, command)) if isinstance(command, list) else ""
        )
        name, arguments = "shell", {"command": joined}
    else:
        name = string(item.get("name"), "python")
        arguments = item.get("arguments") if "arguments" in item else {"input": string(item.get("input"))}
    return Call(name, arguments_of(arguments), id=some_id(item.get("call_id")) or some_id(item.get("id")))


def _output(item: Item) -> ToolOutput:
    own_id, output = some_id(item.get("call_id")), item.get("output")
    ran = [part for part in output if isinstance(part, dict) and "outcome" in part] if isinstance(output, list) else []
    if not ran:
        return ToolOutput(text_of(output), own_id)
    text = "".join(string(part.get("stdout")) + string(part.get("stderr")) for part in ran)
    outcome = part_of(ran[-1], "outcome")
    if outcome.get("type") == "timeout":
        return ToolOutput(text, own_id, Verdict("timeout", "status"), typed=True)
    code = outcome.get("exit_code")
    return ToolOutput(text, own_id, Verdict("error", "status", f"exit {code}") if code else None, typed=True)


def _own_output(item: Item, kind: str) -> ToolOutput:
    own_id = some_id(item.get("id"))
    if kind == "mcp_call":
        error = item.get("error")
        text = text_of(item.get("output")) or (error if isinstance(error, str) else "")
        return ToolOutput(text, own_id, Verdict("error", "status") if error else None, typed=bool(error))
    outputs = item.get("outputs")
    logs = [string(one.get("logs")) for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else []
    failed = item.get("status") == "failed"
    return ToolOutput("\n".join(logs), own_id, Verdict("error", "status") if failed else None, typed=failed)


register(Responses())
