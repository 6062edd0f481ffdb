"""Conversations that a server of messages can be told: framed so that the history's ids say them again, exactly.

    <start>system⏎…<end><start>tools⏎[…]<end><start>user⏎…<end><start>assistant⏎…<end><start>tool call_7⏎…<end>

Each part begins with its role, on a line of its own; `tools` are the request's own, `tool` names the call that it
answers. Calls stand in the assistant's text: as tagged JSON that holds what the server gave (`native`), or as the block
of Python that the model itself wrote (`fence`).
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
from retcon.models.remote import text_of

BEYOND = 1 << 24
"""The first control id: no vocabulary is as large."""
_CONTROLS = {TURN_START: BEYOND, TURN_END: BEYOND + 1}
START, END = _CONTROLS.values()
_NAMES = {i: text for text, i in _CONTROLS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _CONTROLS)) + ")")
_PROBES = (" a", "a \n", "\ta\r\n\n", "e\u0301 é \u00a0 ﬁ ² 東京 🙂", "x  =  '<|im_end|>'")


class StandIn:
    """A `Tokenizer` whose words are another one's ids and whose control tokens are its own, beyond any vocabulary: they
    frame messages, no message can hold them, and whatever the tokenizer, they are there.

    name: of the tokenizer, for the record. Raises RecipeError where it changes text: the server would be told something
    else than was said.
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
        """Of the words' vocabulary."""
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
        """What stands between a turn's start and its end, or the end of all; by ids: words cannot forge it."""
        body: list[int] | None = None
        for i in (*ids, END):
            if i in (START, END):
                if body is not None:
                    yield self._words.decode(body)
                body = [] if i == START else None
            elif body is not None:
                body.append(i)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Each control id by itself, and what stands between two of them in one go, with its first id."""
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
        """The parts, and the opening of the model's turn in one piece of glue with the end of the last."""
        pieces = [piece for part in parts for piece in part]
        last = pieces.pop().text if pieces else ""
        return [*pieces, glue(f"{last}{TURN_START}assistant\n")]

    def render_messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        return self._then_opened([self._part(role, text) for role, text in messages])


class Native(_Messages):
    """Tools are shown to the server as such, and its calls come apart from its words."""

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
        return [said.removesuffix(TURN_END) for role, _, said in parts if role.startswith("tool ")]


class Fenced(_Messages):
    """The model is told in words how to call Python, and what its programs printed as a user would."""

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
        return [said.split(TURN_END)[0] for said in text.split(f"{TURN_START}user\n{PRINTED}")[1:]]


NATIVE, FENCED = Native(), Fenced()


def request_of(tokenizer: StandIn, ids: Sequence[int], manner: Manner) -> dict[str, Any]:
    """`messages`, and `tools` where there are some, of a history that ends where the model's turn opens."""
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
            # Where a repair took the call's words out, the API knows of no call that this could answer.
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
    """The assistant's message, its calls apart from its words. before: messages before it, which names calls that
    have no name of their own. answers: how many of its calls have one, the last ones: the API takes no other, so that
    what else looks like a call, such as one that was cut off, stays among the words."""
    calls = list(hermes.find_calls(text))
    calls = calls[max(0, len(calls) - answers) :]
    if not calls:
        return {"role": "assistant", "content": text}
    said = text[: calls[0].char].removesuffix("\n")
    return {
        "role": "assistant",
        "content": said or None,
        "tool_calls": [
            {
                "id": _id(call.label) or f"call_{before}_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": _as_given(call)},
            }
            for n, call in enumerate(calls)
        ],
    }


def _as_given(call: FoundCall) -> str:
    """The arguments, as text. What could not be read is in the call's own text, beside its name."""
    if isinstance(call.arguments, str):
        try:
            return str(json.loads(call.arguments)["arguments"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return call.arguments
    return json.dumps(call.arguments, ensure_ascii=False)


def with_objects(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request, the arguments of every call in it a JSON object: those that are none stand as text within one. None
    where they all are already."""
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


def pieces_of(message: Mapping[str, Any], manner: Manner) -> list[str]:
    """What a server's message adds to the history, in pieces that begin on ids of their own: its words, then each call.

    With `fence` the message ends with its first block, as what follows was said before the program ran. Raises
    LookupError, TypeError or AttributeError for what is no message.
    """
    said = text_of(message.get("content") or "")
    if manner == "fence":
        call, end = next(markdown.find_blocks(said), (None, 0))
        whole = call is not None and not isinstance(call.arguments, str)
        return [said[: call.char], said[call.char : end]] if call and whole else [said]
    calls = [_tagged(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return [said]
    separate = (piece for call in calls[1:] for piece in ("\n", call))
    return [f"{said}\n" if said else "", calls[0], *separate]


def _tagged(call: Mapping[str, Any]) -> str:
    about = call["function"]
    id = _id(str(call.get("id") or ""))
    given = {"name": about["name"], "arguments": about.get("arguments") or "{}", "id": id}
    return f"{hermes.OPEN}\n{as_json(given)}\n{hermes.CLOSE}"


def _id(label: str) -> str:
    """What a call is named in the glue; nothing for a label that would say something there itself: in a message's text
    the model may have written any."""
    return label if _ID.fullmatch(label) else ""


def _arguments(given: Mapping[str, object] | str) -> Mapping[str, object]:
    return {"code": given} if isinstance(given, str) else given
