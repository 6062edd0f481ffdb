"""The endpoint over a model in this process: keys and values that last, exact log-probs, and a GRPO update."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")
pytest.importorskip("torch", reason="a model here needs the [train] extra")

import httpx
import torch

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory, to_sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import DEFAULT_COMPUTING
from retcon.models.loading import load_model
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.tools.scripted import ScriptedTool
from retcon.train.objective.old_logprobs import Mismatch, recompute
from retcon.train.sft import run_sft
from retcon.train.update import to_samples, update
from servers.agent import MODEL, SAAR, run_python, said, serving, user
from training import FAILING, make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that calls, in vain or not, and answers."""
    folder = tmp_path_factory.mktemp("caller")
    base = make_base(folder / "base", positions=1024)
    return run_sft(small_recipe(base), make_demonstrations(base, folder / "demonstrations.jsonl"), folder / "run")


def engine_of(folder: Path) -> tuple[LocalEngine, RolloutContext]:
    engine = LocalEngine(load_model(folder), max_len=1024, max_requests=8, tokenizer=load_tokenizer(folder))
    tool = ScriptedTool(lambda code: (FAILING[code], "error", "NameError") if code in FAILING else run_python(code))
    limits = RolloutLimits(max_tokens=600, max_turns=4, lookahead_tokens=300)
    chat = Chat(load_tokenizer(folder))
    return engine, RolloutContext(engine, chat, {"python": tool}, limits, SamplingParams(), SAAR, model=MODEL)


async def conversed(http: httpx.AsyncClient, session: str, rounds: int, reward: float | None = None) -> list[Any]:
    told: list[Any] = []
    answers = []
    for _ in range(rounds):
        told.append(user("go"))
        body = {"model": MODEL, "messages": told, "max_tokens": 60}
        answer = await http.post("/v1/chat/completions", json=body, headers={"X-Retcon-Session": session})
        answers.append(answer.json())
        told.append(said(answers[-1]))
    if reward is not None:
        await http.post(f"/v1/sessions/{session}/reward", json={"reward": reward})
    return answers


def test_a_conversation_goes_on_in_its_keys_and_values(caller: Path) -> None:
    async def main() -> None:
        engine, context = engine_of(caller)
        async with engine, serving(context) as url, httpx.AsyncClient(base_url=url, timeout=300) as http:
            (first,) = await conversed(http, "s", 1)
            await conversed(http, "other", 1)
            before, told = engine.stats.prefilled, [user("go"), said(first), user("go")]
            body = {"model": MODEL, "messages": told, "max_tokens": 1}
            named = {"X-Retcon-Session": "s"}
            answer = (await http.post("/v1/chat/completions", json=body, headers=named)).json()
            known, fed = answer["retcon"]["known_tokens"], engine.stats.prefilled - before
            assert known > 5
            assert fed <= answer["usage"]["prompt_tokens"] - known + 1  # the last that was sampled was not fed yet

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_client_that_is_gone_leaves_no_row_behind(caller: Path) -> None:
    async def main() -> None:
        engine, context = engine_of(caller)
        async with engine, serving(context) as url:
            async with httpx.AsyncClient(base_url=url, timeout=300) as http:
                body = {"model": MODEL, "messages": [user("go")], "max_tokens": 500, "stop": ["never"]}
                asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
                while not engine._requests:
                    await asyncio.sleep(0)
                asking.cancel()
            while engine._requests:
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/v1/sessions")).json()["data"] == []

    asyncio.run(asyncio.wait_for(main(), 300))


@pytest.fixture(scope="module")
def group(caller: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Eight conversations of three questions each, rewarded in turns."""
    folder = tmp_path_factory.mktemp("record")

    async def main() -> None:
        engine, context = engine_of(caller)
        async with engine, serving(context, folder) as url, httpx.AsyncClient(base_url=url, timeout=300) as http:
            await asyncio.gather(*(conversed(http, f"s{n}", 3, float(n % 2)) for n in range(8)))

    asyncio.run(asyncio.wait_for(main(), 300))
    return list(jsonl.read(folder / FILE))


def test_log_probs_on_the_record_are_the_models(caller: Path, group: list[Trajectory]) -> None:
    samples = [to_sample(trajectory) for trajectory in group]
    assert any(any(sample.spliced) for sample in samples), "nothing was repaired"
    found = recompute(load_model(caller), samples, Mismatch(), DEFAULT_COMPUTING)
    for mine, theirs in zip(samples, found, strict=True):
        for here, there, counts in zip(mine.logprobs, theirs.logprobs, mine.mask, strict=True):
            if counts:
                assert here == pytest.approx(there, abs=1e-4)


def test_what_was_recorded_trains(caller: Path, group: list[Trajectory]) -> None:
    section = load_recipe(None, ["rl.algorithm=grpo", "rl.minibatches=1"]).rl
    assert len({t.task for t in group}) == 1
    samples = to_samples(group, section.advantages([t.reward or 0.0 for t in group]), section)
    model = load_model(caller)
    metrics = update(model, torch.optim.AdamW(model.parameters()), samples, section, seed=0, step=1)
    assert metrics["clip_fraction"] == 0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert (metrics["grad_norm"] or 0) > 0
