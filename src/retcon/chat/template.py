"""A model's own chat template, the Jinja in its folder, and conversations framed as it would frame them.

The template is never given what was sampled. It is asked how it frames a conversation of placeholders; what stands
between those is glue, what takes their place is encoded as plain text: nothing that a user or a tool writes can become
a control token, and a turn costs what it adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from retcon.core.errors import CheckpointError, MissingExtra
from retcon.core.installing import how_to_install

if TYPE_CHECKING:
    import jinja2

DATE = date(2024, 7, 26)
"""What templates are told that today is: a run that is resumed tomorrow must have the same prompts."""

MORE = "additional_chat_templates"
"""The folder in which transformers keeps those of several templates that are not the default one."""
FOR_TOOLS = f"{MORE}/tool_use.jinja"

Message = Mapping[str, object]


class Refused(CheckpointError):
    """A template cannot render a conversation."""


class Template:
    """A Jinja template, rendered as transformers does it (trimmed blocks, `tojson` with letters as they are).

    variables: what it is given besides messages and tools, such as `bos_token` and `enable_thinking`. where: its file,
    in messages. Raises CheckpointError where it is no Jinja, MissingExtra without jinja2.
    """

    def __init__(self, text: str, variables: Mapping[str, object] | None = None, *, where: str = "template") -> None:
        self.text = text
        self.where = where
        self.variables = dict(variables or {})
        self._compiled  # noqa: B018  broken Jinja is found before work starts

    def render(self, messages: Sequence[Message], tools: Sequence[object] = (), *, opening: bool = True) -> str:
        """The text of a conversation; opening: up to where the model's next turn opens. Raises Refused."""
        import jinja2

        try:
            return self._compiled.render(
                messages=messages, tools=list(tools) or None, add_generation_prompt=opening, **self.variables
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise Refused(f"{self.where}: the template refuses a conversation: {error}") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise MissingExtra(f"{self.where}: a chat template needs jinja2: {how_to_install('train')}") from error
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
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
    """A template as it stands in a folder. where: its file. tokens: the control tokens that it is given by name."""

    text: str
    where: str
    tokens: Mapping[str, str]

    def compiled(self, variables: Mapping[str, object] | None = None) -> Template:
        """Raises CheckpointError, MissingExtra."""
        return Template(self.text, {**self.tokens, **(variables or {})}, where=self.where)


def read_template(folder: Path) -> Source | None:
    """`chat_template.jinja` of a Hugging Face folder, or the template in its `tokenizer_config.json`; None where there
    is none. Of several, wherever they stand, the one for tools. Raises CheckpointError for files that cannot be read.
    """
    config, files = folder / "tokenizer_config.json", (folder / FOR_TOOLS, folder / "chat_template.jinja")
    file = next((file for file in files if file.is_file()), None)
    try:
        about = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        text = None if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: the chat template cannot be read: {error}") from error
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
    tokens = {f"{name}_token": _token(about.get(f"{name}_token")) for name in ("bos", "eos", "unk", "pad")}
    return Source(text, where, tokens)


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
