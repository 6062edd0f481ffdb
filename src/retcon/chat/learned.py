"""Chat families as data: syntax of calls and of turns, learnt or shipped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from retcon.chat import markdown
from retcon.chat.family import Family, NamedCall, append_system, join_lines
from retcon.chat.formats import CDATA, CDATA_END, ID, KEY, NAMED, CallFormat
from retcon.chat.jsons import as_json, read_all
from retcon.chat.template import TemplateFraming
from retcon.chat.thoughts import THOUGHTS, calls_outside_thoughts
from retcon.chat.types import Answer, FoundCall, Piece, TextMessage, glue, words
from retcon.core.types import ToolSpec

_WORDS = "zqwords"


@dataclass(frozen=True)
class LearnedFamily(Family):
    """Family given by the format of its calls.

    call_end: the control token that ends a turn with calls, where that is another. before_words, after_words: around
    the words of a turn. observed_between: before and after an observation.
    """

    format: CallFormat
    ends: tuple[str, ...]
    call_end: str = ""
    thoughts: tuple[tuple[str, str], ...] = THOUGHTS
    opens_thought: bool = False
    before_words: str = ""
    after_words: str = ""
    observed_between: tuple[str, str] = ("", "")
    stops: tuple[str, ...] = ()
    name: str = "template"
    template: str = ""
    tokens: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    piecewise: bool = False
    calls_are_text: bool = False

    @property
    def labels_calls(self) -> bool:  # type: ignore[override]
        return self.format.shows_id or self.format.numbered

    @property
    def parallel(self) -> bool:  # type: ignore[override]
        return self.format.parallel

    @property
    def writes_calls(self) -> bool:  # type: ignore[override]
        return self.format.readable

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return calls_outside_thoughts(text, self.format.find_calls(text), self.thoughts, opened=self.opens_thought)

    def cast_arguments(self, call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
        return typed_arguments(call, tools) if self.format.syntax == "tags" else call

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        pieces = [glue(self.before_words), words(text)] if text else []
        pieces += self._calls(calls, after_words=bool(text)) if calls else [glue(self.after_words)]
        if self.calls_are_text:
            return [words("".join(piece.text for piece in pieces))]
        return [piece for piece in pieces if piece.text]

    def end_of(self, calls: Sequence[NamedCall]) -> str:
        return self.call_end or self.ends[0] if calls else self.ends[0]

    def observations_in(self, text: str) -> list[str]:
        before, after = map(re.escape, self.observed_between)
        return re.findall(f"{before}(.*?){after}", text, re.DOTALL) if before and after else []

    def _calls(self, calls: Sequence[NamedCall], *, after_words: bool) -> list[Piece]:
        form, first = self.format, calls[0][0]
        pieces = [glue((form.after_words if after_words else form.begin).replace(NAMED, first))]
        for n, (name, arguments) in enumerate(calls):
            label = f"retcon{n:03d}"
            opening = (form.between if n else "") + form.opening
            pieces.append(glue(opening.replace(ID, label).replace(NAMED, name)))
            if isinstance(arguments, str):
                pieces.append(words(arguments))
            else:
                pieces += self._written_call(name, arguments, n, label)
            pieces.append(glue(form.closing))
        return [*pieces, glue(form.end)]

    def _written_call(self, name: str, arguments: Mapping[str, object], n: int, label: str) -> list[Piece]:
        form = self.format
        if form.syntax == "object":
            return [words(form.written_object(name, arguments, n, label))]
        if form.syntax == "python":
            literal = as_json_value if form.probe == '"' else repr
            return [words(f"{name}({', '.join(f'{key}={literal(value)}' for key, value in arguments.items())})")]
        after = form.after_name.replace(ID, label)
        pieces = [words(name), glue(re.sub(r"\d+", lambda m: str(int(m[0]) + n), after) if form.numbered else after)]
        if form.tags is None:
            return [*pieces, *(_quoted(arguments, form.quote) if form.quote else [words(as_json(arguments))])]
        tags = form.tags
        for key, value in arguments.items():
            text = isinstance(value, str)
            shown = value if isinstance(value, str) else as_json_value(value)
            if text and any(char in shown for char in tags.cdata):
                shown = f"{CDATA}{shown}{CDATA_END}"
            pieces += [
                glue(tags.opening), words(key),
                glue(tags.middle if text else tags.middle_other), words(shown),
                glue(tags.closing.replace(KEY, key)),
            ]  # fmt: skip
        return pieces


def _quoted(value: object, quote: str) -> Iterator[Piece]:
    """Render a value with `quote` around its strings and with bare keys."""
    if isinstance(value, str):
        yield from (glue(quote), words(value), glue(quote))
    elif isinstance(value, Mapping | list):
        named = isinstance(value, Mapping)
        yield words("{" if named else "[")
        for n, item in enumerate(value):
            yield words("," * bool(n) + f"{item}:" * named)
            yield from _quoted(value[item] if named else item, quote)
        yield words("}" if named else "]")
    else:
        yield words(as_json_value(value))


def as_json_value(value: object) -> str:
    """Dump a value as JSON on one line."""
    return as_json({"": value})[5:-1]


def typed_arguments(call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
    """Parse arguments as JSON or Python where their schema wants no string."""
    spec = next((tool for tool in tools if tool.name == call.name), None)
    known = spec.parameters.get("properties") if spec is not None else None
    if isinstance(call.arguments, str) or not isinstance(known, Mapping):
        return call
    return replace(call, arguments={name: _valued(v, known.get(name)) for name, v in call.arguments.items()})


def _valued(text: object, schema: object) -> object:
    if not isinstance(text, str):
        return text
    kinds, word = _kinds(schema), text.strip().lower()
    if "null" in kinds and word in ("none", "null"):
        return None
    if "boolean" in kinds and word in ("true", "false"):
        return word == "true"
    if not kinds:
        return text
    value = read_all(text)
    return text if value is None or ("string" in kinds and not kinds & _JSON_TYPES.get(type(value), set())) else value


_JSON_TYPES = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"}, dict: {"object"}}


def _kinds(schema: object) -> set[str]:
    """Return the JSON types that a schema allows, as far as it names them."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type", ())
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    found |= {"null"} if schema.get("nullable") is True else set()  # as OpenAPI has it, and transformers
    for word in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(word, ()):
            found |= _kinds(one)
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    found |= {"string" if isinstance(value, str) else "other" for value in values}
    return found | ({"object"} if "$ref" in schema else set())


class CodeBlocks(LearnedFamily):
    """Family with Markdown blocks of Python as calls, explained by a prompt."""

    names_calls = False

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        body = text.removesuffix(self.after_words)
        return calls_outside_thoughts(body, markdown.find_blocks(body), self.thoughts, opened=self.opens_thought)

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        return [glue(self.before_words), *join_lines(text, (_block(*call) for call in calls)), glue(self.after_words)]


def _block(name: str, arguments: Mapping[str, object] | str) -> str:
    if isinstance(arguments, str):
        return markdown.render_call(arguments.strip("\n"))
    code = str(arguments.get("code", ""))
    return markdown.render_call(code.strip("\n")) if code else f"```{name}\n{as_json(arguments)}\n```"


EXPLAINED = (
    "You can run Python. Write a program in a block that begins with ```python and ends with ```; its output is given "
    "to you in a block that begins with ```output. Print what you want to see."
)
OUTPUT, OUTPUT_END = "```output\n", "\n```"


class CodeBlockFraming(TemplateFraming):
    """Framing by a template, with observations as blocks in a user's message."""

    def messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> Sequence[TextMessage]:
        """Return the messages as the template gets them."""
        return self.place_system(append_system(messages, EXPLAINED) if tools else messages)

    def render_prompt(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> list[Piece]:
        return super().render_prompt(self.messages(messages, tools), ())

    def render_results(self, answers: Sequence[Answer], messages: Sequence[TextMessage]) -> list[Piece]:
        pieces = self.render_messages([("user", _WORDS), *messages])
        at = next(n for n, piece in enumerate(pieces) if piece.sort == "words")
        blocks: list[Piece] = []
        for n, answer in enumerate(answers):
            blocks += [glue(("\n" if n else "") + OUTPUT), Piece("observation", answer.text), glue(OUTPUT_END)]
        return [*pieces[:at], *blocks, *pieces[at + 1 :]]

    def render_messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        return super().render_messages(messages)
