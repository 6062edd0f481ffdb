"""`retcon serve-agent` over a scripted model, for clients that speak to it over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Trajectory
from retcon.engine.scripted import ScriptedEngine
from retcon.rollout.context import RolloutLimits
from servers.agent import SAAR, context_of, serving_beside

ROOMY = RolloutLimits(max_tokens=60_000, max_turns=6, lookahead_tokens=4000)


def written(query: str, name: str = "search") -> str:
    """A call of a tool of the client's, as the models of Hermes' and Qwen's style write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


@contextmanager
def endpoint(
    replies: Any, record: Path | None = None, *, style: str = "markdown", **settings: Any
) -> Iterator[tuple[str, ScriptedEngine]]:
    """Its URL, and what the model was given."""
    engine = ScriptedEngine(ByteTokenizer(), replies)
    context = context_of(engine, style=style, repair=SAAR, limits=ROOMY)
    with serving_beside(context, record, **settings) as url:
        yield f"{url}/v1", engine


def reward(url: str, session: str, value: float) -> None:
    """Ends the session."""
    httpx.post(f"{url}/sessions/{session}/reward", json={"reward": value}).raise_for_status()


def exact(kept: Trajectory, engine: ScriptedEngine) -> bool:
    """Whether the trajectory begins with what the engine was given last."""
    ids = tuple(i for s in kept.segments for i in s.ids or ())
    return ids[: len(engine.seen[-1][1])] == engine.seen[-1][1]
