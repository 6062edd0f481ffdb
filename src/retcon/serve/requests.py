"""A request of `/v1/chat/completions`: read, checked, and what it asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from retcon.core.errors import RecipeError, nearest
from retcon.core.types import ANYTHING, ToolSpec
from retcon.http.endpoints import RequestRefused
from retcon.serve.errors import invalid_request, parse_request
from retcon.serve.sessions import ChatMessage, MessageCall, Role
from retcon.tools.schema import check_schema


class PartBody(msgspec.Struct):
    type: str
    text: str | None = None


class FunctionBody(msgspec.Struct):
    name: str
    arguments: str = "{}"


class CallBody(msgspec.Struct):
    function: FunctionBody
    id: str = ""


class MessageBody(msgspec.Struct):
    """Fields that are not here are those of other servers, which harnesses send back: they say nothing to a model."""

    role: str
    content: str | list[PartBody] | None = None
    tool_calls: list[CallBody] | None = None
    tool_call_id: str = ""
    is_error: bool | None = None


class ShapeBody(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct):
    function: ShapeBody | None = None
    type: str = "function"


class StreamBody(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatBody(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's fields, and top_k and min_p as vLLM has them. From `n` on: taken where they ask for nothing else than
    what is done anyway (`requests.NEUTRAL`). From `user` on: they say nothing to a model, and are not used; nor is
    parallel_tool_calls, which no model is held to."""

    model: str
    messages: list[MessageBody]
    tools: list[ToolBody] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamBody | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    parallel_tool_calls: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    reasoning_effort: Any = None


PLAIN = ":chat"
"""After the model's name: nothing is run here, and what looks like a program is text."""
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MOST_RANKED = 2**31 - 1
"""The largest top_k: servers keep it in 32 bits."""
NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none",),
}
"""What a field may say that is not served."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a request asks for. plain: nothing is run here, and no call is looked for. tools: the client's own, which it
    runs itself; none: those of this server. max_tokens: of a message, None for as many as the server allows.
    temperature, top_p, …: None where the server decides. usage: whether a stream ends with a chunk of it. turns: that
    calls which run here may come to, None where the server decides; no body says it. agent: see `Node`; the URL says
    it."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...]
    plain: bool
    stream: bool
    usage: bool
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    turns: int | None = None
    agent: str = ""

    @property
    def alone(self) -> bool:
        """Whether one message answers it, of which nothing is run here."""
        return bool(self.tools) or self.plain


def read_request(body: bytes, model: str) -> ChatRequest:
    """The request in a body. model: the name of the one that is served. Raises RequestRefused that names the field."""
    asked = parse_request(body, ChatBody)
    names = (model, model + PLAIN)
    if asked.model not in names:
        known = f"there is no model '{asked.model}'{nearest(asked.model, names)}; there are {' and '.join(names)}"
        raise RequestRefused(404, "model_not_found", known, field="model")
    _check_numbers(asked)
    for field, neutral in NEUTRAL.items():
        value = getattr(asked, field)
        if value is not None and value not in neutral:
            raise invalid_request(field, f"{field} is served only as {neutral[0]!r}", "unsupported")
    limits = [v for v in (asked.max_tokens, asked.max_completion_tokens) if v is not None]
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    return ChatRequest(
        asked.model,
        tuple(_said(message, n) for n, message in enumerate(asked.messages)),
        () if asked.tool_choice == "none" else _tools(asked.tools or ()),
        plain=(asked.model.endswith(PLAIN) and asked.model != model) or asked.tool_choice == "none",
        stream=bool(asked.stream),
        usage=asked.stream_options is not None and bool(asked.stream_options.include_usage),
        max_tokens=min(limits) if limits else None,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed,
        stop=stops,
    )


def _check_numbers(asked: ChatBody) -> None:
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    checks = (
        ("max_tokens", "1 or more", asked.max_tokens is None or asked.max_tokens >= 1),
        ("max_completion_tokens", "1 or more", asked.max_completion_tokens is None or asked.max_completion_tokens >= 1),
        ("temperature", "a finite number of 0 or more", _holds(asked.temperature, 0.0, math.inf)),
        ("top_p", "above 0 and at most 1", _holds(asked.top_p, 0.0, 1.0) and asked.top_p != 0),
        ("top_k", f"from 0 (off) to {MOST_RANKED}", asked.top_k is None or 0 <= asked.top_k <= MOST_RANKED),
        ("min_p", "from 0 to 1", _holds(asked.min_p, 0.0, 1.0)),
        ("stop", "a text, or up to 4 of them, none empty", len(stops) <= 4 and all(stops)),
        ("tool_choice", "'auto', 'none' or 'required', which is not enforced", _chooses(asked.tool_choice)),
    )
    for field, allowed, holds in checks:
        if not holds:
            raise invalid_request(field, f"{field} is {getattr(asked, field)!r}; it must be {allowed}")


def _holds(value: float | None, least: float, most: float) -> bool:
    return value is None or (math.isfinite(value) and least <= value <= most)


def _chooses(choice: object) -> bool:
    return choice is None or choice in ("auto", "none", "required")


def _tools(bodies: Sequence[ToolBody]) -> tuple[ToolSpec, ...]:
    specs: dict[str, ToolSpec] = {}
    for n, body in enumerate(bodies):
        if body.type != "function" or body.function is None:
            raise invalid_request(f"tools[{n}].type", f"a tool of type '{body.type}': functions alone are served")
        shape = body.function
        if shape.name in specs:
            raise invalid_request(f"tools[{n}].function.name", f"'{shape.name}' is the name of another tool too")
        spec = ToolSpec(shape.name, shape.description or "", shape.parameters or ANYTHING)
        try:
            check_schema(spec)
        except RecipeError as error:
            raise invalid_request(f"tools[{n}].function.parameters", str(error)) from error
        specs[shape.name] = spec
    return tuple(specs.values())


def _said(message: MessageBody, at: int) -> ChatMessage:
    where = f"messages[{at}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise invalid_request(
            f"{where}.role", f"'{message.role}' is not one of {', '.join(_ROLES)}{nearest(message.role, _ROLES)}"
        )
    if message.tool_calls and role != "assistant":
        raise invalid_request(f"{where}.tool_calls", f"a message of the {message.role} calls no tools")
    if role == "tool" and not message.tool_call_id:
        raise invalid_request(f"{where}.tool_call_id", "a tool's message must say which call it answers")
    calls = tuple(MessageCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    text = _text(message.content, where)
    if role == "user" and message.content is None:
        raise invalid_request(f"{where}.content", "the user's message has no content")
    return ChatMessage(role, text, calls, message.tool_call_id, message.is_error, at)


def _text(content: str | list[PartBody] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    parts = []
    for n, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            raise invalid_request(f"{where}.content[{n}].type", f"a part of type '{part.type}': text alone is served")
        parts.append(part.text)
    return "\n".join(parts)
