"""Weights handed to vLLM servers, over real connections to servers that speak its protocol; a real vLLM is in
tests/real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retcon.core.errors import EngineError
from retcon.engine.vllm.engine import VLLMEngine, write_weights
from servers.answering import Answer, serving
from servers.asking_vllm import GREEDY, engine_of, run
from servers.speaking_vllm import VLLM, tokens_asked

pytestmark = pytest.mark.torch


def test_weights_follow_and_tokens_of_others_are_not_taken() -> None:
    """A server that was started anew between two requests, which nobody noticed, has its first weights again."""
    pytest.importorskip("torch", reason="weights need the [train] extra")
    server_is = VLLM()

    async def work(engine: VLLMEngine) -> list[str | None]:
        seen: list[str | None] = []
        async with engine.connected():
            for anew in (False, False, True):
                await engine.follow()
                if anew:
                    server_is.weights = "default"
                seen.append((await engine.generate("a", [5], GREEDY)).version)
                assert seen[-1] == engine.weights == server_is.weights
        return seen

    with serving(server_is, models=()) as server:
        engine = engine_of(server, trained=True)
        versions = run(work(engine))
    assert len(set(versions)) == 3
    assert len(server_is.loaded) == 4
    assert [body["cache_salt"] for body in tokens_asked(server)] == [*versions, versions[-1]]
    assert engine.stats.retried == 1
    assert not any(Path(folder).exists() for folder in server_is.loaded)  # they lie in memory


def test_a_generation_that_weights_of_two_steps_made_says_which_token_is_whose() -> None:
    """Where rollouts run ahead. Tokens of weights that this run has not made are not taken there either."""
    pytest.importorskip("torch", reason="weights need the [train] extra")
    server_is = VLLM()

    def told(*spans: tuple[str | None, int, int]) -> Answer:
        body = json.loads(json.dumps(server_is.tokens({"token_ids": [5], "sampling_params": {"max_tokens": 3}}).body))
        body["choices"][0]["weight_versions"] = [{"version": v, "start": a, "end": b} for v, a, b in spans]
        return Answer(body)

    async def work(engine: VLLMEngine) -> list[Any]:
        names = []
        async with engine.connected():
            for step in (4, 5):
                engine.version = step
                await engine.follow()
                names.append(engine.weights)
            both = told((names[0], 0, 1), (names[1], 1, 3))
            foreign = told((names[0], 0, 1), ("default", 1, 3))
            server_is.answers = [both, foreign, told((names[1], 0, 3))]
            return [await engine.generate("a", [5], GREEDY) for _ in range(2)]

    with serving(server_is, models=()) as server:
        engine = engine_of(server, trained=True)
        made = run(work(engine))
    assert [g.versions for g in made] == [(4, 5, 5), (5, 5, 5)]
    assert [g.version for g in made] == [None, engine.weights]
    assert engine.stats.retried == 1
    update = ["/pause?mode=keep", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
              "/finish_weight_update", "/resume"]  # fmt: skip
    assert [asked.path for asked in server.asked if asked.path in update] == [*update * 2, "/resume"], "looked at anew"


def test_an_update_that_a_trainer_left_unfinished_is_begun_anew() -> None:
    pytest.importorskip("torch", reason="weights need the [train] extra")
    server_is = VLLM(updating=True, paused=True)

    async def work(engine: VLLMEngine) -> None:
        async with engine.connected():
            await engine.follow()
            assert (await engine.generate("a", [5], GREEDY)).version == engine.weights

    with serving(server_is, models=()) as server:
        run(work(engine_of(server, trained=True)))
    assert not server_is.updating
    assert not server_is.paused, "whoever paused it may be gone"


def test_weights_of_a_trainer_that_was_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engines import model_of

    monkeypatch.setattr("retcon.engine.vllm.engine.MEMORY", tmp_path)
    script = "import pathlib, sys; from engines import model_of; from retcon.engine.vllm import engine as weights\n"
    script += "weights.MEMORY = pathlib.Path(sys.argv[1]); weights.write_weights(model_of('llama').save_pretrained)"
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": path})
    (left,) = tmp_path.iterdir()
    first, second = (write_weights(model_of("llama").save_pretrained) for _ in range(2))
    assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted((first, second))


def test_weights_that_there_is_no_room_for_leave_nothing_behind(tmp_path: Path) -> None:
    """Half of them would take the memory that is lacking."""

    def save(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(EngineError, match=r"cannot be written to .* MiB are free: no space left on device"):
        write_weights(save, tmp_path)
    assert list(tmp_path.iterdir()) == []
