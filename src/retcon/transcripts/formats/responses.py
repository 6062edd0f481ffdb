"""Items of OpenAI's Responses API, and sessions of Codex."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from retcon.transcripts.items import Thought, replace_at, speaker_of, text_of, without_words, words_of
from retcon.transcripts.itemwise import (
    Item,
    ItemList,
    Itemwise,
    Pieces,
    arguments_of,
    exit_output,
    flagged_output,
    lists,
    objects,
    part_of,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.types import Json
from retcon.transcripts.verdicts import Verdict, judge

_NAMED = {"function_call", "custom_tool_call", "mcp_call"}
_SHELLS = {"local_shell_call", "shell_call"}
_AWAITED = {"function_call", "custom_tool_call", *_SHELLS, "apply_patch_call", "computer_call", "tool_search_call"}
"""Calls whose output is an item of its own. One of any other kind holds what it gave, if no item is its output."""
_CALLS = _AWAITED | {
    "code_interpreter_call", "mcp_call", "web_search_call", "file_search_call", "image_generation_call",
}  # fmt: skip
"""By these a list is known to be of this API: in any other list, what ends in `_call` may be an event of a log."""
_SEARCHED = "tool_search_output"
_OWN = _CALLS | {f"{name}_output" for name in _AWAITED - {"tool_search_call"}} | {_SEARCHED}
_CALL, _OUTPUT = "_call", "_call_output"
_OTHERS = {"tool_call", "server_tool_call", "invalid_tool_call"}
"""Of LangChain's messages."""
_BESIDE = {"type", "id", "call_id", "status", "output", "outputs", "result", "results", "error"}
"""What is no argument of a call."""
_TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_WORDS = {"message", "reasoning"}
_REQUEST, _RESPONSE = "responses_create_params", ("response", "output")
"""Where NeMo-Gym has what was asked, and the rollout."""
_EXITED = re.compile(
    r"(?:Command: [^\n]*\n)?(?:Chunk ID: \w+\n)?Wall time: [\d.]+ seconds\nProcess exited with code (-?\d{1,9})\n"
)
"""What Codex's `exec_command` writes before what a command printed."""


class Responses(Itemwise):
    """Items of OpenAI's Responses API.

    A call and its output are items of their own, joined by `call_id`; those of the server's tools are both. Beside
    an item of a known type, any whose type ends in `_call` is a call. Reasoning and words stay with the call that
    follows them."""

    name = "responses"
    stale = MappingProxyType({(name,): [] for name in _TOKENS})
    aliases: Sequence[str] = ("nemo-gym",)
    needs = frozenset({"type"})
    in_lines = True
    marks: Sequence[str] = (
        "function_call", "custom_tool_call", "local_shell_call", "shell_call", "code_interpreter_call", "mcp_call",
        "function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
        "call_id", "reasoning", "output_text", _REQUEST,
    )  # fmt: skip

    def inside(self, item: Json) -> Item:
        """Return the API's own item in one of a list."""
        return item if isinstance(item, dict) else {}

    def all_inside(self, items: Sequence[Item]) -> list[Item]:
        """Return the inner items of each item of a list."""
        return [self.inside(item) for item in items]

    def with_inside(self, item: Json, inside: Json) -> Json:
        """Put another API item into an item of a list."""
        return inside

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(_is_own(self.inside(item)) for item in items)

    def is_plain(self, items: Sequence[Item]) -> bool:
        typed = all(string(item.get("type"), "message") in _WORDS for item in items)
        return typed and any(item.get("role") == "assistant" and "content" in item for item in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the list with the most calls; of NeMo-Gym's records, the response's."""
        found = [(path, items) for path, items in lists(record) if self.has_calls(items)]
        found = found or [(path, items) for path, items in lists(record) if self.is_plain(items)][-1:]
        if not found:
            return None
        rollout = [one for one in found if tuple(one[0]) == _RESPONSE] if part_of(record, _REQUEST) else []
        path, items = max(rollout or found, key=lambda one: sum(map(_is_own, one[1])))
        request = part_of(record, _REQUEST) or (record if isinstance(record, dict) else {})
        context = request.get("input") if tuple(path) not in ((), ("input",)) else None
        given = [context] if isinstance(context, str) else context if isinstance(context, list) else []
        texts = [t if isinstance(t, str) else _text(t) for t in given]
        asked = [(speaker_of(item), text) for item, text in zip(given, texts, strict=True) if text]
        instructions = request.get("instructions")  # text, or items, as prompts of the server give it
        system = "\n\n".join(_text(one) for one in objects(instructions))
        return ItemList(path, items, "\n\n".join(texts), asked, system or string(instructions))

    def with_items(self, record: Json, place: ItemList, items: list[Json]) -> Json:
        """Other lists that have the same items go with these: NeMo-Gym may keep a rollout twice."""
        new = super().with_items(record, place, items)
        for path, other in lists(record):
            if tuple(path) != tuple(place.path) and (copied := _as_copied(other, place.items, items)) is not None:
                new = replace_at(new, path, copied)
        return new

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        inner = self.all_inside(items)
        awaited = _AWAITED | {string(one.get("type")).removesuffix("_output") for one in inner if _is_output(one)}
        for item, one in zip(items, inner, strict=True):
            kind = string(one.get("type"), "message")
            if _is_call(one):
                pieces.add_calls(item, [_call(one, kind)])
                if kind not in awaited and (output := _own_output(one, kind)) is not None:
                    pieces.add_results(None, [output])
            elif _is_output(one):
                pieces.add_results(item, [_output(one)])
            elif kind == "reasoning" or (kind == "message" and one.get("role") == "assistant"):
                pieces.add_words(item, (Thought if kind == "reasoning" else str)(words_in(one)))
            elif kind == "message" and ("role" in one or "content" in one):
                pieces.add_context(item, _text(one))
            else:
                pieces.add_silent(item)  # an item reference, a list of tools
        return pieces.all

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        inner = self.inside(item)
        if _words(inner):
            return self.with_inside(item, super().without_words(inner, cuts))
        return self.with_inside(item, {**inner, "summary": without_words(inner.get("summary"), cuts)})


def _as_copied(other: Sequence[Json], old: Sequence[Json], new: Sequence[Json]) -> list[Json] | None:
    """Repeat a change in a list that copies another, or its end; else None."""
    theirs, ours = [*map(_without_tokens, other)], [*map(_without_tokens, old)]
    at = next((n for n in range(len(other) - len(old) + 1) if theirs[n : n + len(old)] == ours), None)
    if at is not None:
        begin, end, cut = at, at + len(old), 0
    else:  # the beginning may stand in one of them alone
        begin, end, cut = 0, len(other), len(old) - len(other)
        if cut <= 0 or theirs != ours[cut:] or [*old[:cut]] != [*new[:cut]]:
            return None
    same = [*other[begin:end]] == [*old[cut:]]
    return [*other[:begin], *(new[cut:] if same else map(_without_tokens, new[cut:])), *other[end:]]


def _without_tokens(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in _TOKENS} if isinstance(item, dict) else item


def _is_call(item: Item) -> bool:
    kind = string(item.get("type"))
    return kind.endswith(_CALL) and kind not in _OTHERS


def _is_output(item: Item) -> bool:
    kind = string(item.get("type"))
    return kind == _SEARCHED or (kind.endswith(_OUTPUT) and kind.removesuffix("_output") not in _OTHERS)


def _is_own(item: Item) -> bool:
    return string(item.get("type")) in _OWN


def words_in(item: Item) -> str:
    """Return the words or reasoning of the model's item."""
    return _words(item) or text_of(item.get("summary"))


def _words(item: Json) -> str:
    return words_of(item.get("content")) if isinstance(item, dict) else ""


def _text(item: Json) -> str:
    return text_of(item.get("content")) if isinstance(item, dict) else ""


def _call(item: Item, kind: str) -> Call:
    action = part_of(item, "action")
    arguments: object
    if kind == "code_interpreter_call":
        name, arguments = "code_interpreter", {"code": string(item.get("code"))}
    elif action and kind in _SHELLS:
        command = action.get("command", action.get("commands"))
        joined = (
            (" " if kind == "local_shell_call" else "\n").join(map(str, command)) if isinstance(command, list) else ""
        )
        name, arguments = "shell", {"command": joined}
    elif kind in _NAMED:
        name = string(item.get("name"), "python")
        arguments = item.get("arguments")
        if arguments is None and ("input" in item or "arguments" not in item):  # a custom tool's
            arguments = {"input": string(item.get("input"))}
    else:
        name = kind.removesuffix(_CALL)
        arguments = action or part_of(item, "operation") or {k: v for k, v in item.items() if k not in _BESIDE}
    return Call(name, arguments_of(arguments), id=some_id(item.get("call_id")) or some_id(item.get("id")))


def _output(item: Item) -> ToolOutput:
    own_id, output = some_id(item.get("call_id")), item.get("output")
    ran = [part for part in output if isinstance(part, dict) and "outcome" in part] if isinstance(output, list) else []
    if not ran:
        failed = item.get("status") == "failed"
        text = "" if part_of(item, "output").get("type") == "computer_screenshot" else text_of(output)
        ended = _EXITED.match(text)
        if ended and int(ended[1]):
            return ToolOutput(text, own_id, judge(text) or Verdict("error", "status", f"exit {ended[1]}"), typed=True)
        return flagged_output(text, own_id, failed=failed or None)
    text = "".join(string(part.get("stdout")) + string(part.get("stderr")) for part in ran)
    outcome = part_of(ran[-1], "outcome")
    if outcome.get("type") == "timeout":
        return ToolOutput(text, own_id, Verdict("timeout", "status"), typed=True)
    code = outcome.get("exit_code")
    return exit_output(text, own_id, code if type(code) is int else 0)


def _own_output(item: Item, kind: str) -> ToolOutput | None:
    """Return the output that a server tool's call holds.

    None where it has not ended, or its record has no output (the API leaves the outputs of code out unless they are
    asked for)."""
    own_id, status = some_id(item.get("id")), item.get("status")
    failed = status == "failed"
    if kind == "mcp_call":
        error = item.get("error")
        text = text_of(item.get("output")) or (error if isinstance(error, str) else "")
        return flagged_output(text, own_id, failed=bool(error) or None)
    if kind != "code_interpreter_call":
        return flagged_output("", own_id, failed=failed) if failed or status == "completed" else None
    outputs = item.get("outputs")
    if outputs is None and not failed:
        return None
    return flagged_output("\n".join(string(one.get("logs")) for one in objects(outputs)), own_id, failed=failed or None)


RESPONSES = Responses()


_ITEM, _EVENT, _META, _COMPACTED = "response_item", "event_msg", "session_meta", "compacted"
_REPEATED = ("message", "text", "last_agent_message")
"""Where events repeat what the model says."""
_TAKEN_BACK = "thread_rolled_back"
_CONTEXT = re.compile(r"\s*(?:# AGENTS\.md instructions\b.*|<([\w-]+)>.*</\1>\s*)", re.DOTALL)
"""What Codex itself says in the user's name."""


class Codex(Responses):
    """Lines of a Codex session.

    A line's `payload` is an item where its `type` is `response_item`; one of `compacted` replaces all before it for
    the model, and no repair spans that. All other lines stay with the one before them. Events that repeat what a
    repair has cut are emptied. Lines of turns that the user took back stay as they are."""

    name = "codex"
    aliases = ()
    needs = frozenset({"payload"})
    marks = ("payload", _ITEM, _EVENT, _META, "turn_context", "timestamp", "function_call", "function_call_output")

    def inside(self, item: Json) -> Item:
        own, kind = part_of(item, "payload"), item.get("type") if isinstance(item, dict) else None
        if kind == _COMPACTED:
            return {"type": "message", "role": "user", "content": own.get("message")}
        return own if kind == _ITEM and own else {"type": ""}

    def all_inside(self, items: Sequence[Item]) -> list[Item]:
        inner = super().all_inside(items)
        for n in _taken_back(items, inner):
            inner[n] = {"type": ""}
        return inner

    def with_inside(self, item: Json, inside: Json) -> Json:
        return {**item, "payload": inside} if isinstance(item, dict) else item

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any("role" in self.inside(item) for item in items)

    def find(self, record: Json) -> ItemList | None:
        for suits in (self.has_calls, self.is_plain):
            for path, items in lists(record):
                if suits(items):
                    return ItemList(path, items, system=_base_instructions(items))
        return None

    def update_references(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        cut = {words for item in before if (words := words_in(self.inside(item)).strip())}
        cut -= {words_in(self.inside(item)).strip() for item in items}
        return [_without(item, cut) for item in items]


def _taken_back(items: Sequence[Item], inner: Sequence[Item]) -> set[int]:
    """Return places of lines in turns that a rollback took back."""
    begun: list[int] = []
    taken: set[int] = set()
    for n, (item, one) in enumerate(zip(items, inner, strict=True)):
        event = part_of(item, "payload")
        turns = event.get("num_turns") if item.get("type") == _EVENT and event.get("type") == _TAKEN_BACK else None
        if item.get("type") == _ITEM and _is_asked(one):
            begun.append(n)
        elif type(turns) is int and turns > 0 and begun:
            taken.update(range(begun[-min(turns, len(begun))], n))
            del begun[-turns:]
    return taken


def _is_asked(item: Item) -> bool:
    """Whether the user wrote a message, and not Codex."""
    content = item.get("content")
    parts = content if isinstance(content, list) else [content]
    return item.get("role") == "user" and not any(_CONTEXT.fullmatch(text_of([part])) for part in parts)


def _base_instructions(items: Iterable[Item]) -> str:
    for item in items:
        if item.get("type") == _META:
            meta = part_of(item, "payload")
            return string(part_of(meta, "base_instructions").get("text")) or text_of(meta.get("instructions"))
    return ""


def _without(item: Json, cut: set[str]) -> Json:
    own = part_of(item, "payload")
    if not isinstance(item, dict) or item.get("type") != _EVENT:
        return item
    stale: dict[str, Json] = {key: "" for key in _REPEATED if string(own.get(key)).strip() in cut}
    return {**item, "payload": {**own, **stale}} if stale else item


CODEX = Codex()
