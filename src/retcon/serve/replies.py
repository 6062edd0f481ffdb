"""Answers in OpenAI's shapes: a completion, the chunks of one, and what Retcon says of it besides (`retcon`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from retcon.core.types import REPLACED, Turn, token_count
from retcon.http.handling import encoded
from retcon.serve.answering import Reply
from retcon.serve.requests import Asked
from retcon.serve.sessions import Exchange

CHUNK = 400
"""Characters of a chunk of the text."""
DONE = b"data: [DONE]\n\n"
WORKING = b": working\n\n"
"""A comment, by which nobody gives up on a connection."""


def completion(asked: Asked, reply: Reply, id: str) -> dict[str, Any]:
    """A chat completion."""
    exchange = reply.exchange
    message: dict[str, Any] = {"role": "assistant", "content": _content(exchange), "refusal": None}
    if exchange.shown.calls:
        message["tool_calls"] = _calls(exchange)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(exchange)}
    about = _about(asked, id, "chat.completion")
    return {**about, "choices": [choice], "usage": _usage(reply), "retcon": retcon(reply)}


def chunks(asked: Asked, reply: Reply, id: str) -> Iterator[bytes]:
    """The same as server-sent events. The message stands before its first chunk: what a repair takes out is in none."""
    exchange, about = reply.exchange, _about(asked, id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**about, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    text = _content(exchange) or ""
    for start in range(0, len(text), CHUNK):
        yield chunk({"content": text[start : start + CHUNK]})
    for n, call in enumerate(_calls(exchange)):
        yield chunk({"tool_calls": [{"index": n, **call}]})
    yield chunk({}, _finish(exchange), retcon=retcon(reply))
    if asked.usage:
        yield event({**about, "choices": [], "usage": _usage(reply)})
    yield DONE


def event(value: object) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


def retcon(reply: Reply) -> dict[str, Any]:
    """What was done for an answer. turns: of the clean history; calls, failed: that were made here, as they happened.
    repairs: what failed and what stands in its place. known_tokens: of the history, that were not encoded again;
    abandoned_tokens: generated, and not part of the history."""
    turns = reply.exchange.turns
    raw = [attempt for turn in turns for attempt in turn.raw()]
    kept = token_count(s for turn in turns for s in turn.generated)
    return {
        "session": reply.session,
        "turns": len(turns),
        "calls": sum(len(turn.observations) for turn in raw),
        "failed": sum(turn.failures for turn in raw),
        "repairs": [_repair(n, turn) for n, turn in enumerate(turns) if turn.repair is not None],
        "known_tokens": reply.known,
        "abandoned_tokens": reply.exchange.sampled_tokens - kept,
    }


def _repair(number: int, turn: Turn) -> dict[str, Any]:
    assert turn.repair is not None
    replaced = turn.repair.decision in REPLACED
    failed = turn.abandoned[:-1] if replaced else turn.raw()
    said: dict[str, Any] = {
        "turn": number,
        "decision": turn.repair.decision,
        "attempts": turn.repair.attempts,
        "similarity": turn.repair.similarity,
        "reason": turn.repair.reason,
        "failed": [one for attempt in failed for one in _made(attempt)],
    }
    return {**said, "replaced_by": _made(turn)} if replaced else said


def _made(turn: Turn) -> list[dict[str, Any]]:
    """The calls of a turn, and what was said to them where that is known."""
    told = {o.call_id: o for o in turn.observations}
    found = []
    for call in turn.calls:
        one: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
        if (observation := told.get(call.id)) is not None:
            one |= {"status": observation.status, "error_type": observation.error_type, "output": observation.text}
        found.append(one)
    return found


def _about(asked: Asked, id: str, kind: str) -> dict[str, Any]:
    return {"id": id, "object": kind, "created": int(time.time()), "model": asked.model}


def _content(exchange: Exchange) -> str | None:
    """None for a message that is nothing but calls."""
    return exchange.shown.text or (None if exchange.shown.calls else "")


def _calls(exchange: Exchange) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in exchange.shown.calls
    ]


def _finish(exchange: Exchange) -> str:
    if exchange.shown.calls:
        return "tool_calls"
    return "stop" if exchange.stop == "answer" else "length"


def _usage(reply: Reply) -> dict[str, Any]:
    """prompt_tokens: of the history; completion_tokens: all that were generated, those of abandoned attempts too."""
    made = reply.exchange.sampled_tokens
    return {
        "prompt_tokens": reply.before,
        "completion_tokens": made,
        "total_tokens": reply.before + made,
        "prompt_tokens_details": {"cached_tokens": reply.known},
    }
