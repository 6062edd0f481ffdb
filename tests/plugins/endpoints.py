"""`retcon serve-agent` over a scripted model, or a tiny one to train, for clients that speak to it over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer, load_tokenizer
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.loading import load_model
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.train.update import to_samples, update
from servers.agent import SAAR, context_of, serving_beside
from training import make_base

LONG = 16_384
"""Tokens; smolagents tells a model some 6,000 of these before its first."""
ROOMY = RolloutLimits(max_tokens=60_000, max_turns=6, lookahead_tokens=4000)


def written(query: str, name: str = "search") -> str:
    """A call of a tool of the client's, as the models of Hermes' and Qwen's style write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


@contextmanager
def endpoint(
    replies: Any,
    record: Path | None = None,
    *,
    style: str = "markdown",
    limits: RolloutLimits = ROOMY,
    **settings: Any,
) -> Iterator[tuple[str, ScriptedEngine]]:
    """Its URL, and what the model was given."""
    engine = ScriptedEngine(ByteTokenizer(), replies)
    context = context_of(engine, style=style, repair=SAAR, limits=limits)
    with serving_beside(context, record, **settings) as url:
        yield f"{url}/v1", engine


def reward(url: str, session: str, value: float) -> None:
    """Ends the session."""
    httpx.post(f"{url}/sessions/{session}/reward", json={"reward": value}).raise_for_status()


def exact(kept: Trajectory, engine: ScriptedEngine) -> bool:
    """Whether the trajectory begins with what the engine was given last."""
    ids = tuple(i for s in kept.segments for i in s.ids or ())
    return ids[: len(engine.seen[-1][1])] == engine.seen[-1][1]


@contextmanager
def trained(folder: Path, style: str) -> Iterator[str]:
    """The URL of a tiny model. What sessions of the block come to trains it, by a GRPO update: on-policy, so that
    nothing is clipped, and the log-probs on the record are the model's own."""
    made = make_base(folder / "base", positions=LONG)
    model, chat = load_model(made), Chat(load_tokenizer(made), style=style)
    engine = LocalEngine(model, max_len=LONG, max_requests=8, tokenizer=chat.tokenizer)
    limits = RolloutLimits(max_tokens=LONG - 500, max_turns=3, lookahead_tokens=500)
    context = RolloutContext(engine, chat, {}, limits, SamplingParams(max_tokens=24), SAAR, model="tiny")
    with serving_beside(context, folder, answer_tokens=24) as base:
        yield f"{base}/v1"
    group = list(jsonl.read(folder / FILE))
    assert {t.task for t in group} == {"asked"}
    assert all(t.sampled_tokens for t in group)
    section = load_recipe(None, ["rl.algorithm=grpo", "rl.minibatches=1"]).rl
    samples = to_samples(group, section.advantages([t.reward or 0.0 for t in group]), section)
    before = [parameter.clone() for parameter in model.parameters()]
    metrics = update(model, torch.optim.AdamW(model.parameters()), samples, section, seed=0, step=1)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-8)
    assert metrics["grad_norm"] > 0  # type: ignore[operator]
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
