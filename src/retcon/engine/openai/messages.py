"""Chat style for servers of messages, recovered exactly from ids.

    <start>system⏎…<end><start>tools⏎[…]<end><start>user⏎…<end><start>assistant⏎…<end><start>tool call_7⏎…<end>

Each part begins with its role on its own line; `tools` are the request's own, `tool` names the call that it answers.
Calls stand in the assistant's text: as tagged JSON with the server's call (`native`), or as the block of Python that
the model itself wrote (`fence`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from retcon.chat import markdown
from retcon.chat.families import hermes
from retcon.chat.family import Family, Framing, NamedCall, append_system, join_lines
from retcon.chat.jsons import as_json
from retcon.chat.types import TURN_END, TURN_START, Answer, FoundCall, Piece, TextMessage, Tokenizer, glue, words
from retcon.core.errors import CheckpointError, RecipeError, nearest
from retcon.core.types import ToolSpec
from retcon.models.remote import extract_text

BEYOND = 1 << 24
"""The first control id: no vocabulary is as large."""
_CONTROLS = {TURN_START: BEYOND, TURN_END: BEYOND + 1}
START, END = _CONTROLS.values()
_NAMES = {i: text for text, i in _CONTROLS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _CONTROLS)) + ")")
_PROBES = (" a", "a \n", "\ta\r\n\n", "e\u0301 é \u00a0 ﬁ ² 東京 🙂", "x  =  '<|im_end|>'")


class SurrogateTokenizer:
    """A `Tokenizer` with another one's ids and its own control tokens.

    These lie beyond any vocabulary: they frame messages, and no message can hold them. name: of the tokenizer, for the
    record. Raises RecipeError if it changes text: the server would get another text than the model wrote.
    """

    def __init__(self, words: Tokenizer, name: str) -> None:
        self._words, self.name = words, name
        for probe in _PROBES:
            back = words.decode(words.encode(probe))
            if back != probe:
                raise RecipeError(
                    f"the tokenizer of {name} cannot stand in for a server's, as it changes text ({probe!r} comes back "
                    f"as {back!r}): use another model's, such as model.path = 'base'"
                )

    @property
    def controls(self) -> Sequence[str]:
        return tuple(_CONTROLS)

    @property
    def size(self) -> int:
        """Size of the words' vocabulary."""
        return self._words.size

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if not special:
            return self._words.encode(text)
        ids: list[int] = []
        for piece in _SPLIT.split(text):
            ids.extend([_CONTROLS[piece]] if piece in _CONTROLS else self._words.encode(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_NAMES[i] if i >= BEYOND else self._words.decode(run) for i, run in _runs(ids))

    def special_id(self, text: str) -> int:
        if text not in _CONTROLS:
            raise CheckpointError(f"messages have no control token {text!r}{nearest(text, _CONTROLS)}")
        return _CONTROLS[text]

    def framed(self, ids: Sequence[int]) -> Iterator[str]:
        """Yield each turn's text, by control ids, which words cannot forge."""
        body: list[int] | None = None
        for i in (*ids, END):
            if i in (START, END):
                if body is not None:
                    yield self._words.decode(body)
                body = [] if i == START else None
            elif body is not None:
                body.append(i)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each control id by itself, and the ids between two of them together, with the first id."""
    run: list[int] = []
    for i in ids:
        if i >= BEYOND:
            if run:
                yield run[0], run
            yield i, [i]
            run = []
        else:
            run.append(i)
    if run:
        yield run[0], run


Manner = Literal["native", "fence"]
Message = dict[str, Any]

INSTRUCTIONS = """Solve the problem. To compute, end your message with one block of Python that prints what you need:
```python
print(6 * 7)
```
You are then shown what it printed, and go on. When you know the answer, write it as \\boxed{answer} and no block."""
PRINTED = "It printed:\n"
_ID = re.compile(r"[\w.:-]{1,100}")


class _Messages(Family, Framing):
    controls = (TURN_START,)
    ends = (TURN_END,)
    piecewise = True

    def _part(self, role: str, text: str, *, sort: Literal["words", "observation"] = "words") -> list[Piece]:
        return [glue(f"{TURN_START}{role}\n"), words(text) if sort == "words" else Piece(sort, text), glue(TURN_END)]

    def _then_opened(self, parts: Sequence[list[Piece]]) -> list[Piece]:
        """Return the parts; the opening of the model's turn is one piece of glue with the end of the last."""
        pieces = [piece for part in parts for piece in part]
        last = pieces.pop().text if pieces else ""
        return [*pieces, glue(f"{last}{TURN_START}assistant\n")]

    def render_messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        return self._then_opened([self._part(role, text) for role, text in messages])


class NativeMessages(_Messages):
    """Messages with the API's own tools and calls."""

    name = "messages"
    labels_calls = True

    def render_prompt(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> list[Piece]:
        parts = [self._part(role, text) for role, text in messages]
        if tools:
            shown = json.dumps([tool.as_function() for tool in tools], ensure_ascii=False)
            parts.insert(0, self._part("tools", shown))
        return self._then_opened(parts)

    def render_results(self, answers: Sequence[Answer], messages: Sequence[TextMessage]) -> list[Piece]:
        parts = [self._part(f"tool {_id(answer.label)}", answer.text, sort="observation") for answer in answers]
        return self._then_opened([*parts, *(self._part(role, text) for role, text in messages)])

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return hermes.find_calls(text)

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        return join_lines(text, (hermes.render_call(name, _arguments(given)) for name, given in calls))

    def observations_in(self, text: str) -> list[str]:
        parts = (part.partition("\n") for part in text.split(TURN_START))
        return [output.removesuffix(TURN_END) for role, _, output in parts if role.startswith("tool ")]


class FencedMessages(_Messages):
    """Messages that describe Python calls in text, with outputs as user messages."""

    name = "fence"
    names_calls = False

    def __init__(self, instructions: str = INSTRUCTIONS) -> None:
        self.instructions = instructions

    def render_prompt(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> list[Piece]:
        shown = append_system(messages, self.instructions) if tools and self.instructions else messages
        return self._then_opened([self._part(role, text) for role, text in shown])

    def render_results(self, answers: Sequence[Answer], messages: Sequence[TextMessage]) -> list[Piece]:
        pieces = [glue(f"{TURN_START}user\n")]
        for n, answer in enumerate(answers):
            pieces += [glue(f"\n{PRINTED}" if n else PRINTED), Piece("observation", answer.text)]
        return self._then_opened([[*pieces, glue(TURN_END)], *(self._part(role, text) for role, text in messages)])

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return markdown.find_calls(text)

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        return join_lines(text, (markdown.render_call(str(_arguments(given).get("code", ""))) for _, given in calls))

    def observations_in(self, text: str) -> list[str]:
        return [output.split(TURN_END)[0] for output in text.split(f"{TURN_START}user\n{PRINTED}")[1:]]


NATIVE, FENCED = NativeMessages(), FencedMessages()


def build_request(tokenizer: SurrogateTokenizer, ids: Sequence[int], manner: Manner) -> dict[str, Any]:
    """Return a request's `messages`, and any `tools`, of an open history."""
    *parts, _ = tokenizer.framed(ids)
    messages: list[Message] = []
    request: dict[str, Any] = {"messages": messages}
    waiting: list[str] = []  # the ids of calls that are not answered yet
    for n, part in enumerate(parts):
        role, _, text = part.partition("\n")
        role = role.partition(" ")[0]
        if role == "tools":
            request["tools"] = json.loads(text)
        elif role == "tool":
            # Where a repair removed the call, the API has no call that this could answer.
            whose = {"role": role, "tool_call_id": waiting.pop(0)} if waiting else {"role": "user"}
            messages.append({**whose, "content": text})
        elif role == "assistant" and manner == "native":
            answers = takewhile(lambda part: part.startswith("tool "), parts[n + 1 :])
            messages.append(_with_calls(text, before=len(messages), answers=len(list(answers))))
            waiting = [call["id"] for call in messages[-1].get("tool_calls", ())]
        else:
            messages.append({"role": role, "content": text})
    return request


def _with_calls(text: str, *, before: int, answers: int) -> Message:
    """Return the assistant's message, its calls apart from its text. before: number of messages before it, for ids of
    calls without a label. answers: how many of its calls have one, the last ones: the API takes no other, so that
    anything else that looks like a call, such as one that was cut off, stays in the text."""
    calls = list(hermes.find_calls(text))
    calls = calls[max(0, len(calls) - answers) :]
    if not calls:
        return {"role": "assistant", "content": text}
    return {
        "role": "assistant",
        "content": text[: calls[0].char].removesuffix("\n") or None,
        "tool_calls": [
            {
                "id": _id(call.label) or f"call_{before}_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments_text(call)},
            }
            for n, call in enumerate(calls)
        ],
    }


def _arguments_text(call: FoundCall) -> str:
    """Return the arguments as text. Unreadable ones stand in the call's own text, beside its name."""
    if isinstance(call.arguments, str):
        try:
            return str(json.loads(call.arguments)["arguments"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return call.arguments
    return json.dumps(call.arguments, ensure_ascii=False)


def wrap_arguments(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request with all calls' arguments as JSON objects; others become text in one.

    None if they all are objects already."""
    changed = False
    messages: list[Message] = []
    for message in request["messages"]:
        calls = []
        for call in message.get("tool_calls", ()):
            about = call["function"]
            if not _is_object(about["arguments"]):
                changed = True
                about = {**about, "arguments": json.dumps({"arguments": about["arguments"]}, ensure_ascii=False)}
            calls.append({**call, "function": about})
        messages.append({**message, "tool_calls": calls} if calls else message)
    return {**request, "messages": messages} if changed else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def split_message(message: Mapping[str, Any], manner: Manner) -> list[str]:
    """Split a server's message into pieces with separate ids: text, then calls.

    With `fence` the message ends with its first block, as the text after it was written before the program ran. Raises
    LookupError, TypeError or AttributeError for anything else than a message.
    """
    text = extract_text(message.get("content") or "")
    if manner == "fence":
        call, end = next(markdown.find_blocks(text), (None, 0))
        whole = call is not None and not isinstance(call.arguments, str)
        return [text[: call.char], text[call.char : end]] if call and whole else [text]
    calls = [_tagged_call(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return [text]
    separate = (piece for call in calls[1:] for piece in ("\n", call))
    return [f"{text}\n" if text else "", calls[0], *separate]


def _tagged_call(call: Mapping[str, Any]) -> str:
    about = call["function"]
    id = _id(str(call.get("id") or ""))
    given = {"name": about["name"], "arguments": about.get("arguments") or "{}", "id": id}
    return f"{hermes.OPEN}\n{as_json(given)}\n{hermes.CLOSE}"


def _id(label: str) -> str:
    """Return a call's name in the glue; empty for a label that could pass for glue: the model may have written any in a
    message's text."""
    return label if _ID.fullmatch(label) else ""


def _arguments(given: Mapping[str, object] | str) -> Mapping[str, object]:
    return {"code": given} if isinstance(given, str) else given
