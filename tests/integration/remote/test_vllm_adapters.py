"""Adapters handed to vLLM servers as such, over real connections to servers that speak its protocol; a real vLLM is in
tests/real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.engine.types import Adapters, SamplingParams
from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from servers.answering import Answer, Asked, Server, serving
from servers.speaking_vllm import TOKENIZER, VLLM, tokens_asked

pytestmark = pytest.mark.torch
GREEDY = SamplingParams(temperature=0, max_tokens=3)


def save(folder: Path) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (folder / name).write_text("adapters")


ADAPTERS = Adapters(16, ("q_proj", "v_proj"), save)


def engine_of(*servers: Server, weights_folder: Path | None = None) -> VLLMEngine:
    pytest.importorskip("torch", reason="weights need the [train] extra")

    def model() -> Any:
        raise AssertionError("nobody needs merged weights")

    urls = tuple(server.url.removesuffix("/v1") for server in servers)
    settings = VLLMSettings(urls, weights_folder=weights_folder)
    return VLLMEngine(settings, TOKENIZER, max_len=64, model=model, trained=True, adapters=ADAPTERS)


def lora(**about: Any) -> VLLM:
    return VLLM({"rank": 16, "backend": None, **about})


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_requests_ask_for_the_newest_adapter_by_its_name() -> None:
    server_is = lora()

    async def work(engine: VLLMEngine) -> list[str | None]:
        seen = []
        async with engine.connected():
            for _ in range(4):
                await engine.follow()
                seen.append((await engine.generate("a", [5], GREEDY)).version)
                assert seen[-1] == engine.weights
                assert await engine.score("a", [5, 6], 1) == (-6.0,)
        return seen

    with serving(server_is, models=()) as server:
        versions = run(work(engine_of(server)))
    assert len(set(versions)) == 4
    assert [body["model"] for body in tokens_asked(server)] == [v for v in versions for _ in range(2)]
    assert list(server_is.adapters) == versions[-2:], "of those before, the last one alone is kept"
    assert len(server_is.loaded) == 4
    assert not any(Path(folder).exists() for folder in server_is.loaded)


def test_the_folder_of_an_adapter_stays_while_a_request_has_it() -> None:
    """The server may have to read it again: it holds a few at a time."""
    server_is = lora()
    server_is.holds = "/inference/v1/generate"

    async def work(engine: VLLMEngine) -> Any:
        async with engine.connected():
            engine.version = 4
            await engine.follow()
            asking = asyncio.create_task(engine.generate("a", [5], GREEDY))
            await asyncio.to_thread(server_is.begun.wait, 30)
            engine.version = 5
            await engine.follow()
            assert Path(server_is.loaded[0]).exists()
            server_is.answered.set()
            made = [await asking, await engine.generate("b", [5], GREEDY)]
            engine.version = 6
            await engine.follow()
            assert not Path(server_is.loaded[0]).exists()
            return made

    with serving(server_is, models=()) as server:
        made = run(work(engine_of(server)))
    assert [one.versions for one in made] == [(4, 4, 4), (5, 5, 5)], "what is under way goes on with its own"
    assert not server_is.paused
    assert "/pause?mode=keep" not in [about.path for about in server.asked]


@pytest.mark.parametrize(
    ("server_is", "words"),
    [
        (lora(rank=0), r"takes no adapters of rank 16; start it as VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 .*--enable-lora"),
        (lora(rank=8), r"takes no adapters of rank 16; .*--max-lora-rank 16"),
        (lora(targets=None), r"on a CPU vLLM's engine ends .*--lora-target-modules q_proj v_proj"),
        (VLLM({"rank": 16}, runtime=False), r"takes no adapters while it runs; .*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ],
)
def test_a_server_that_takes_no_adapters_is_refused_before_work(server_is: VLLM, words: str) -> None:
    async def work(engine: VLLMEngine) -> None:
        async with engine.connected():
            raise AssertionError("there is work")

    with serving(server_is, models=()) as server, pytest.raises(EngineError, match=words):
        run(work(engine_of(server)))


def test_adapters_that_a_server_cannot_load_end_the_run_with_its_words() -> None:
    server_is = lora()

    def reply(about: Asked) -> Answer:
        if about.path.endswith("load_lora_adapter") and "lora_name" in about.body:
            return Answer({"error": {"message": "expected target modules in ['qkv_proj'] but received ['wte']"}}, 500)
        return server_is(about)

    async def work(engine: VLLMEngine) -> None:
        async with engine.connected():
            await engine.follow()

    with (
        serving(reply, models=()) as server,
        pytest.raises(EngineError, match=r"cannot load the run's adapters: .*received \['wte'\]"),
    ):
        run(work(engine_of(server)))


def refusal(*keys: str) -> Callable[[], None]:
    recipe = load_recipe(None, ["engine.kind=vllm", "engine.url=http://127.0.0.1:1", *keys])
    return lambda: recipe.engine.check_training(recipe)


def test_what_a_recipe_cannot_mean_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"engine\.lora gives servers adapters, and lora\.rank is 0"):
        refusal("engine.lora=true")()
    with pytest.raises(RecipeError, match=r"engine\.weights_folder: .*nowhere is not a writable folder"):
        refusal(f"engine.weights_folder={tmp_path / 'nowhere'}")()
    (tmp_path / "file").touch(0o777)
    with pytest.raises(RecipeError, match=r"engine\.weights_folder: .*file is not a writable folder"):
        refusal(f"engine.weights_folder={tmp_path / 'file'}")()
    refusal("engine.lora=true", "lora.rank=4", f"engine.weights_folder={tmp_path}")()
