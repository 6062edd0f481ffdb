"""Jinja chat templates of model folders, and conversations framed by them.

A template never sees sampled text. It renders a conversation of placeholders; the text between those is glue, and what
takes their place is encoded as plain text: nothing that a user or a tool writes can become a control token, and a turn
costs what it adds.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from retcon.chat.family import Family, Framing, family_of_tokens
from retcon.chat.types import REASONING, Answer, Piece, TextMessage, glue, words
from retcon.core.errors import CheckpointError, RecipeError, TaskWarning
from retcon.core.types import ToolSpec

if TYPE_CHECKING:
    import jinja2

DATE = date(2024, 7, 26)
"""Date given to templates: a run that is resumed tomorrow must have the same prompts."""

MORE = "additional_chat_templates"
"""Folder of a model's templates besides the default one, as in transformers."""
FOR_TOOLS = f"{MORE}/tool_use.jinja"

Message = Mapping[str, object]
MutableMessage = dict[str, object]
GENERATED = "\ue013", "\ue014"
"""Markers around the body of `{% generation %}` in a marked rendering."""
GIVEN = {
    "messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "pad_token",
}  # fmt: skip
"""Variables that every template gets; others are chosen by a recipe."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Form of the messages that a template takes.

    text_arguments: a call's arguments as JSON text. parts: content as a list of parts. no_content: None as the content
    of a turn with calls alone.
    """

    text_arguments: bool = False
    parts: bool = False
    no_content: bool = False

    def message(self, message: Message) -> Message:
        """Return a new message in this dialect."""
        own: MutableMessage = dict(message)
        calls = own.get("tool_calls")
        if isinstance(calls, list):
            own["tool_calls"] = [self._call(call) for call in calls]
            if self.no_content and not own.get("content"):
                own["content"] = None
        if self.parts and isinstance(own.get("content"), str):
            own["content"] = [{"type": "text", "text": own["content"]}]
        return own

    def _call(self, call: Mapping[str, Any]) -> Message:
        function = dict(call["function"])
        if self.text_arguments and not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": function}


DIALECTS = tuple(
    Dialect(text, parts, none) for parts in (False, True) for text in (False, True) for none in (False, True)
)


class RenderError(CheckpointError):
    """A template cannot render a conversation."""


class Template:
    """Jinja template, rendered as transformers does (trimmed blocks, unescaped `tojson`).

    variables: besides messages and tools, such as `bos_token` and `enable_thinking`. where: its file, in messages.
    Raises CheckpointError for invalid Jinja.
    """

    def __init__(self, text: str, variables: Mapping[str, object] | None = None, *, where: str = "template") -> None:
        self.text = text
        self.where = where
        self.variables = dict(variables or {})
        self.dialect = Dialect()
        self.no_tools: list[object] | None = None  # what stands for no tools
        self._around_generated = "", ""
        self._compiled  # noqa: B018  broken Jinja is found before work starts

    def render(
        self, messages: Sequence[Message], tools: Sequence[object] = (), *, opening: bool = True, marked: bool = False
    ) -> str:
        """Render a conversation. opening: with the model's next turn opened; marked: with `GENERATED` around
        `{% generation %}`. Raises RenderError."""
        import jinja2

        self._around_generated = GENERATED if marked else ("", "")
        try:
            return self._compiled.render(
                messages=[self.dialect.message(one) for one in messages], tools=list(tools) or self.no_tools,
                add_generation_prompt=opening, **self.variables,
            )  # fmt: skip
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RenderError(f"{self.where}: the template refuses a conversation: {error}") from error

    def renders(self, messages: Sequence[Message]) -> bool:
        """Return whether the template renders these messages without tools."""
        try:
            self.render(messages)
        except RenderError:
            return False
        return True

    @property
    def reads(self) -> set[str]:
        """Variables that the template reads, besides `GIVEN` and its own."""
        from jinja2 import meta, nodes

        tree = self._compiled.environment.parse(self.text)
        own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
        asked = {
            t.node.name for t in tree.find_all(nodes.Test) if t.name == "defined" and isinstance(t.node, nodes.Name)
        }
        return meta.find_undeclared_variables(tree) - GIVEN - (own - asked)

    @property
    def marks(self) -> bool:
        """Whether the template marks what the model generates."""
        return bool(re.search(r"\{%-?\s*generation", self.text))

    @cached_property
    def _compiled(self) -> jinja2.Template:
        import jinja2
        from jinja2 import ext, nodes
        from jinja2.sandbox import SandboxedEnvironment

        template = self

        class Generation(ext.Extension):
            """The tag `{% generation %}` of trainers' masks; the loss mask here covers what was sampled."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> nodes.Node:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.CallBlock(self.call_method("generated"), [], [], body).set_lineno(line)

            def generated(self, caller: Callable[[], str]) -> str:
                opening, closing = template._around_generated
                return f"{opening}{caller()}{closing}"

        # Templates may change lists: messages are made anew for each rendering.
        environment = SandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = DATE.strftime
        try:
            return environment.from_string(self.text)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"{self.where}: the chat template is not valid Jinja: {error}") from error


@dataclass(frozen=True, slots=True)
class Source:
    """Template of a folder. where: its file. tokens: the control tokens that it gets by name."""

    text: str
    where: str
    tokens: Mapping[str, str]

    def compiled(self, variables: Mapping[str, object] | None = None) -> Template:
        """Compile with these variables. Raises CheckpointError."""
        return Template(self.text, {**self.tokens, **(variables or {})}, where=self.where)


def read_template(folder: Path) -> Source | None:
    """Read the chat template of a Hugging Face folder, if any.

    It is `chat_template.jinja`, or in `tokenizer_config.json`; of several, the one for tools. Raises CheckpointError.
    """
    config, files = folder / "tokenizer_config.json", (folder / FOR_TOOLS, folder / "chat_template.jinja")
    file = next((file for file in files if file.is_file()), None)
    reading = config
    try:
        about = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        reading = file or config
        text = None if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{reading}: the chat template cannot be read: {error}") from error
    if not isinstance(about, dict):
        raise CheckpointError(f"{config} is not an object")
    where = str(file)
    if text is None:
        text, where = about.get("chat_template"), str(config)
    if isinstance(text, list):
        named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
        text = named.get("tool_use") or named.get("default")
    if not isinstance(text, str):
        return None
    return Source(text, where, _tokens(about))


_DEFAULTS = (("<|im_start|>", "<|im_end|>", "assistant"), ("<start_of_turn>", "<end_of_turn>", "model"))
_DEFAULT = """{{ bos_token }}{% for message in messages %}
{{- 'START' + ('MODEL' if message.role == 'assistant' else message.role) + '\n' + message.content + 'END\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ 'STARTMODEL\n' }}{% endif %}"""


def default_template(folder: Path, controls: Sequence[str]) -> Source | None:
    """Return a template by the tokenizer's control tokens, if possible.

    It is that of the shipped family which has these tokens, else frames messages by the tokenizer's tokens for turns.
    """
    config = folder / "tokenizer_config.json"
    try:
        tokens = _tokens(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        tokens = _tokens({})
    if family := family_of_tokens(controls):
        return Source(family.template, f"the template of {family.name}", tokens)
    own = ("", tokens["eos_token"], "assistant")
    start, end, model = next((one for one in _DEFAULTS if {*one[:2]} <= {*controls}), own)
    if end not in controls:
        return None
    text = _DEFAULT.replace("START", start).replace("END", end).replace("MODEL", model)
    return Source(text, f"the default template of {folder}", tokens)


def _tokens(about: Mapping[str, object]) -> dict[str, str]:
    return {f"{name}_token": _token(about.get(f"{name}_token")) for name in ("bos", "eos", "unk", "pad")}


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _to_json(
    value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False, **_: object
) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


PROBES = ("x", "  a b\t", "\nx\n\ny\n", '{"a": "é\\n"}', '<b>"it\'s" & co</b>')
PROBED = ToolSpec(
    "probe", "a probe", {"type": "object", "properties": {"code": {"type": "string", "description": "c"}}}
)
OPEN, CLOSE = "<think>", "\n</think>\n\n"
"""Markers of a thought where the template opens a turn with the first and shows no earlier thought."""
ROLES = ("user", "system", "assistant", "tool")
KEPT = 64
"""Cached renderings of each kind: a server's clients bring ever new tools."""
_LABEL = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


_MANNERS: tuple[Callable[[str], str], ...] = (
    str, str.strip, str.rstrip, str.lstrip, lambda text: text.lstrip("\n"),
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)  # fmt: skip
"""Changes that templates make to a message's text: none, a trim, or JSON's escapes."""


class TemplateFraming:
    """Framing by a model's own template. family: its ends of turns and labels of calls.

    roles: of messages that it is to frame. Raises RecipeError where it changes a text in an unknown way.
    """

    def __init__(self, template: Template, family: Family, roles: Sequence[str] = ROLES) -> None:
        self._template = template
        self._family = family
        self._opening = lru_cache(KEPT)(self._around_messages)
        self._following = lru_cache(KEPT)(self._around_following)
        self._thinking = lru_cache(KEPT)(self._around_thought)
        try:
            for template.no_tools in (None, []):
                if template.renders([message("user", "x")]):
                    break
            self._system = self._takes_system()
            self._manner = {role: self._find_manner(role) for role in roles if role != "system" or self._system}
        except RenderError as error:
            raise RecipeError(str(error)) from error

    def _takes_system(self) -> bool:
        """Return whether the template shows a system message."""
        try:
            return _mark(0) in self._template.render([message("system", _mark(0)), message("user", "x")])
        except RenderError:
            return False

    def place_system(self, messages: Sequence[TextMessage]) -> Sequence[TextMessage]:
        """Move the system's text to the first question where necessary."""
        if self._system or not messages or messages[0][0] != "system":
            return messages
        (_, system), *rest = messages
        at = next((n for n, (role, _) in enumerate(rest) if role == "user"), None)
        if at is None:
            return [("user", system), *rest]
        return [*rest[:at], ("user", f"{system}\n\n{rest[at][1]}"), *rest[at + 1 :]]

    def render_prompt(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> list[Piece]:
        messages = self.place_system(messages)
        try:
            around = self._opening(tuple(role for role, _ in messages), tuple(tools))
        except RenderError:
            if messages:
                raise
            return [
                glue(piece.text.lstrip()) for piece in self.render_messages(())
            ]  # templates look at the first message
        return _fill(around, [words(self._manner[role](text)) for role, text in messages])

    def render_results(self, answers: Sequence[Answer], messages: Sequence[TextMessage]) -> list[Piece]:
        return self._followed(answers, messages, tools=True)

    def render_messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        return self._followed((), messages, tools=bool(tools))

    def _followed(self, answers: Sequence[Answer], messages: Sequence[TextMessage], *, tools: bool) -> list[Piece]:
        around, roles = self._following(tuple(one.name for one in answers), tuple(role for role, _ in messages), tools)
        for n, answer in enumerate(answers):
            label = answer.label if _LABEL.fullmatch(answer.label) else _label(n)
            around = tuple(part.replace(_label(n), label) for part in around)
        pieces = [Piece("observation", self._manner["tool"](answer.text)) for answer in answers]
        pieces += [words(self._manner[role](text)) for role, (_, text) in zip(roles, messages, strict=True)]
        return _fill(around, pieces)

    def render_thought(self, text: str, *, last: bool) -> list[Piece] | None:
        around = self._thinking(bool(text), last)
        if text and around == ():
            why = "reasoning is left out: the template opens each turn with an empty thought (model.thinking = 'off')"
            warnings.warn(f"{self._template.where}: {why}", TaskWarning, stacklevel=2)
        if not around:
            return None if around is None else []
        return [glue(around[0]), words(text.strip()), *map(glue, around[1:])]

    def _around_messages(self, roles: tuple[str, ...], tools: tuple[ToolSpec, ...]) -> tuple[str, ...]:
        """Return the glue around the first messages, of these roles. Raises RenderError."""
        marks = [_mark(n) for n in range(len(roles))]
        placed = [message(role, mark) for role, mark in zip(roles, marks, strict=True)]
        return _split_at(self._alternating(placed, [t.as_function() for t in tools]), marks)

    def _alternating(self, messages: Sequence[Message], tools: Sequence[object]) -> str:
        """Render messages; where the template refuses a user after a user or a tool, merge both."""
        try:
            return self._template.render(messages, tools)
        except RenderError:
            merged: list[Message] = []
            for one in messages:
                if merged and one["role"] == "user" and merged[-1]["role"] in ("user", "tool"):
                    merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n\n{one['content']}"}
                else:
                    merged.append(one)
            if len(merged) == len(messages):
                raise
            return self._template.render(merged, tools)

    def _around_thought(self, thought: bool, last: bool) -> tuple[str, ...] | None:
        """Return the glue before a thought, and between it and a turn's words, after the turn's opening."""
        opened, shown = self._template.render([message("user", "x")]), False
        own = _text(self._family.render_turn(_mark(0), ())).partition(_mark(0))[0]
        for ends in (last, True):  # a template that drops earlier thoughts shows the last turn's
            for key in REASONING if thought else ("",):
                reply = message("assistant", _mark(0)) | ({key: _mark(1)} if key else {})
                messages = [message("user", "x"), reply, *([] if ends else [message("assistant", "x")])]
                try:
                    text = self._template.render(messages, opening=False)
                    before, *between, _ = _split_at(text, [_mark(1)] * thought + [_mark(0)])
                except RenderError:
                    continue
                shown = True
                if before.startswith(opened):
                    *others, near = (before[len(opened) :], *between)
                    found = (*others, near.removesuffix(own))
                    return found if "".join(found).strip() else ()
        if opened.rstrip().endswith(OPEN):
            return "", CLOSE
        return None if thought and not shown else ()

    def _around_following(
        self, names: tuple[str, ...], roles: tuple[str, ...], tools: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the glue around what follows a turn, and the roles of its messages.

        names: of the calls that are answered. roles: of the messages after that; the system's is the user's where the
        template has no system. tools: whether the model is shown any, which a template that moves them to the last
        question does not show again. Raises RenderError.
        """
        if not self._system:
            roles = _of_user(roles)
        marks = [_mark(n) for n in range(len(names) + len(roles))]
        after = [message("tool", marks[n], name, _label(n)) for n, name in enumerate(names)]
        after += map(message, roles, marks[len(names) :])
        refused: list[RenderError] = []
        for count in dict.fromkeys((len(names), min(len(names), 1))):
            turn = [message("user", "x"), self._calling(names[:count])]
            try:
                text = self._after_end(self._alternating([*turn, *after], [PROBED.as_function()] * tools), _mark(-1))
                if tools and not names and PROBED.description in text:
                    return self._around_following(names, roles, tools=False)
                return _split_at(text, marks), roles
            except RenderError as error:
                refused.append(error)
        if "system" in roles:
            return self._around_following(names, _of_user(roles), tools)
        raise refused[0]

    def _calling(self, names: Sequence[str]) -> MutableMessage:
        """Return a turn with a mark in it that calls these tools; the mark alone where calls are text."""
        if not names or not self._family.names_calls:
            return message("assistant", _mark(-1))
        calls = [tool_call(name, {"code": _mark(-1)}, _label(n)) for n, name in enumerate(names)]
        return message("assistant", "") | {"tool_calls": calls}

    def _after_end(self, text: str, mark: str) -> str:
        """Return the text after the end of the turn that the mark is in."""
        start = text.rfind(mark) + len(mark)
        known = (*self._family.ends, *self._family.past_ends)
        found = [(at, end) for end in known if (at := text.find(end, start)) >= 0]
        if start < len(mark) or not found:
            raise RenderError(f"{self._template.where}: the template does not end a turn by {' or '.join(known)}")
        at, end = min(found)
        return text[at + len(end) :]

    def _find_manner(self, role: str) -> Callable[[str], str]:
        for manner in _MANNERS:
            self._manner = dict.fromkeys(ROLES, str) | {role: manner}
            if all(self._renders(role, text) for text in PROBES):
                return manner
        raise RenderError(f"{self._template.where}: the template changes the text of a message of the role {role!r}")

    def _renders(self, role: str, text: str) -> bool:
        """Return whether this framing of a message equals the template's."""
        if role == "tool":
            tried = [message("user", "x"), self._calling(["probe"]), message("tool", text, "probe", _label(0))]
            whole = self._template.render(tried, [PROBED.as_function()])
            made = self.render_results([Answer("probe", text, _label(0))], ())
            return self._after_end(whole, _mark(-1)) == _text(made)
        messages: list[TextMessage] = {
            "user": [("user", text)],
            "system": [("system", text), ("user", "x")],
            "assistant": [("user", "x"), ("assistant", text), ("user", "x")],
        }[role]
        whole = self._template.render([message(*one) for one in messages])
        return whole == _text(self.render_prompt(messages, ()))


@cache
def framing_of(family: Family) -> Framing:
    """Return a family's own framing. Raises RecipeError if only the model's template has it."""
    if isinstance(family, Framing):
        return family
    if not family.template:
        raise RecipeError(f"{family.name} frames messages by the model's own chat template alone: set style to 'auto'")
    return TemplateFraming(Template(family.template, where=f"the template of {family.name}"), family)


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _of_user(roles: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("user" if role == "system" else role for role in roles)


def message(role: str, content: str, name: str = "", label: str = "") -> MutableMessage:
    """Return a message. name, label: of the call that it answers."""
    made: MutableMessage = {"role": role, "content": content}
    return made | ({"name": name, "tool_call_id": label} if name else {})


def tool_call(name: str, arguments: Mapping[str, object], label: str) -> MutableMessage:
    """Return a call as messages have it under `tool_calls`."""
    return {"id": label, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def _mark(n: int) -> str:
    """Return a placeholder of private-use characters, which templates neither hold nor change."""
    return f"\ue000{n}\ue001"


def _label(n: int) -> str:
    """Return a call's id of nine letters and digits, which some templates check."""
    return f"retcon{n:03d}"


def _split_at(text: str, marks: Sequence[str]) -> tuple[str, ...]:
    """Split a text at the marks, of which each must be there once, in order. Raises RenderError."""
    parts: list[str] = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise RenderError("the template leaves out, repeats or moves a message")
        parts.append(before)
    return (*parts, text)


def _fill(around: Sequence[str], pieces: Sequence[Piece]) -> list[Piece]:
    return [*(one for pair in zip(map(glue, around), pieces, strict=False) for one in pair), glue(around[-1])]
