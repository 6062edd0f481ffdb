"""The bodies of requests, as clients write them."""

from __future__ import annotations

from typing import Any

import msgspec


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
