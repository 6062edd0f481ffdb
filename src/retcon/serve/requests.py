"""Requests of `/v1/chat/completions`: parsing and validation."""

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
    """A message. Unknown fields, which harnesses copy from other servers, are ignored."""

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
    """OpenAI's fields, and vLLM's top_k and min_p. From `n` on: accepted only with default values
    (`requests.NEUTRAL`). From `user` on: ignored, without meaning to a model, as is parallel_tool_calls, which no model
    obeys."""

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
"""Suffix of the model's name: run nothing here, and take programs for text."""
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MOST_RANKED = 2**31 - 1
"""Largest top_k, as servers keep it in 32 bits."""
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
"""Accepted values of unsupported fields."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed request. plain: run nothing here, and parse no calls. tools: the client's own, which it runs; empty:
    this server's. max_tokens: of a message, None: the server's maximum. temperature, top_p, …: None: the server's.
    usage: whether a stream ends with a usage chunk. turns: most turns with calls here, None: the server's; not in a
    body. agent: see `Node`; of the URL."""

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
        """Whether the answer is one message without calls run here."""
        return bool(self.tools) or self.plain


def read_request(body: bytes, model: str) -> ChatRequest:
    """Parse a request. model: the served one's name. Raises RequestRefused, which names the field."""
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
        tuple(_parse_message(message, n) for n, message in enumerate(asked.messages)),
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


def _parse_message(message: MessageBody, at: int) -> ChatMessage:
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
