"""The vLLM engine over real connections, to servers that speak vLLM's protocol; a real vLLM is in tests/real."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.kinds.vllm import dtype_of
from retcon.engine.types import EngineSetup
from retcon.engine.vllm.engine import VLLMEngine
from servers.answering import Answer, Asked, serving
from servers.asking_vllm import GREEDY, connected, engine_of, run
from servers.speaking_vllm import TOKENIZER, VLLM, tokens_asked

END = TOKENIZER.special_id("<|im_end|>")


def test_ids_go_both_ways_with_the_requests_own_parameters() -> None:
    with serving(VLLM(), models=()) as server:
        engine = engine_of(server)
        params = replace(GREEDY, stop_ids=(END,), seed=2**40 + 5, top_p=0.5, top_k=4, min_p=0.1)
        generation = run(connected(engine, lambda: engine.generate("a", [5, 6], params)))
    assert (generation.ids, generation.logprobs, generation.stop) == ((6, 6, 6), (-6.0, -6.0, -6.0), "length")
    assert generation.version == "default"
    (body,) = tokens_asked(server)
    assert (body["model"], body["token_ids"]) == ("small", [5, 6])
    sent = body["sampling_params"]
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (0, 0.5, 4, 0.1)
    assert (sent["stop_token_ids"], sent["seed"], sent["ignore_eos"]) == ([END], 5, True)
    assert engine.stats.generated == 3


def test_how_long_a_generation_may_get_and_what_ended_it_go_both_ways() -> None:
    """Stop strings, too, of which the server has to look at the text."""
    told = json.loads(json.dumps(VLLM().tokens({"token_ids": [5], "sampling_params": {"max_tokens": 3}}).body))
    told["choices"][0]["finish_reason"] = "stop"
    asked = replace(GREEDY, max_tokens=30)
    with serving(VLLM(answers=[Answer(told), Answer(told)]), models=()) as server:
        engine = engine_of(server)
        for stop in (("Observation:",), ()):
            params = replace(asked, stop=stop)
            made = run(connected(engine, partial(engine.generate, "a", [5] * 60, params)))
            assert (made.ids, made.stop) == ((5, 5, 5), "stop")
        with pytest.raises(EngineError, match="64 tokens leave no room within 64"):
            run(connected(engine, partial(engine.generate, "a", [5] * 64, asked)))
    with_string, without = (body["sampling_params"] for body in tokens_asked(server))
    assert (with_string["max_tokens"], without["max_tokens"]) == (4, 4)
    assert (with_string["stop"], with_string["include_stop_str_in_output"]) == (["Observation:"], True)
    assert (with_string["detokenize"], without["detokenize"], "stop" in without) == (True, False, False)


def test_scores_are_those_of_the_prompt_and_the_last_id() -> None:
    with serving(VLLM(), models=()) as server:
        engine = engine_of(server)
        assert run(connected(engine, lambda: engine.score("a", [5, 6, 7, 8], 2))) == (-7.0, -8.0)
        assert run(connected(engine, lambda: engine.score("a", [5, 6], 2))) == ()
    assert tokens_asked(server)[0]["token_ids"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("about", "settings", "words"),
    [
        ({"version": "0.9.1"}, {}, r"is vLLM 0\.9\.1; 0\.32 or later is needed"),
        ({"tokens": [1, 2]}, {}, r"serves /small, whose tokenizer is not that of the model of this run"),
        ({"max_model_len": 32}, {}, r"takes 32 tokens and rollouts have up to 64: start it with --max-model-len 64"),
        ({"chunked": True}, {}, r"chunks prefills on a CPU.*does not use offset.*--no-enable-chunked-prefill"),
        ({"backend": "nccl"}, {"trained": True}, r"cannot be given weights \(its backend is nccl\).*retcon_vllm"),
        ({"logprobs": "processed_logprobs"}, {}, r"start it with --logprobs-mode raw_logprobs"),
        ({}, {"model": "big"}, r"engine\.model: .* serves small; 'big' names none of them"),
    ],
)
def test_a_server_that_cannot_serve_this_is_refused_before_any_work(
    about: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    async def nothing() -> None:
        raise AssertionError("there is work")

    with serving(VLLM(about), models=()) as server:
        with pytest.raises(EngineError, match=words):
            run(connected(engine_of(server, **settings), nothing))
        if "chunked" in about:  # without seeds it can serve
            engine = engine_of(server, seeds=False)
            run(connected(engine, lambda: engine.generate("a", [5], GREEDY)))
            assert "seed" not in tokens_asked(server)[0]["sampling_params"]


def test_a_server_that_is_down_from_the_start_is_no_reason_not_to_begin() -> None:
    with serving(VLLM(down=True), models=()) as dead, serving(VLLM(), models=()) as alive:
        engine = engine_of(dead, alive)
        assert run(connected(engine, lambda: engine.generate("a", [5], GREEDY))).ids == (5, 5, 5)
        with pytest.raises(EngineError, match="no vLLM server answers"):
            run(connected(engine_of(dead), lambda: None))


def test_what_a_server_refuses_is_not_asked_again() -> None:
    refused = Answer({"error": {"message": "Token id 99 is out of vocabulary"}}, 400)
    with serving(VLLM(answers=[refused]), models=()) as server:
        engine = engine_of(server)
        with pytest.raises(EngineError, match=r"request a: .*status 400.*out of vocabulary"):
            run(connected(engine, lambda: engine.generate("a", [99], GREEDY)))
    assert len(tokens_asked(server)) == 1


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_request_that_the_server_gives_up_is_asked_again(finish: str) -> None:
    given_up = VLLM().tokens({"token_ids": [1], "sampling_params": {"max_tokens": 1}})
    body = json.loads(json.dumps(given_up.body))
    body["choices"][0]["finish_reason"] = finish
    with serving(VLLM(answers=[Answer(body)]), models=()) as server:
        engine = engine_of(server)
        assert run(connected(engine, lambda: engine.generate("a", [5], GREEDY))).ids == (5, 5, 5)


def test_log_probs_that_are_missing_or_no_numbers_are_a_fault_and_not_certain() -> None:
    def told(change: Callable[[list[Any]], Any]) -> Answer:
        body = json.loads(json.dumps(VLLM().tokens({"token_ids": [5], "sampling_params": {"max_tokens": 3}}).body))
        change(body["choices"][0]["logprobs"]["content"])
        return Answer(body)

    changes = (
        (list.pop, "sent the log-probs of 2 tokens, and 3 tokens"),
        (lambda told: told[0].update(logprob=math.nan), "a log-prob is nan"),
        (lambda told: told[0].update(logprob=-math.inf), "a log-prob is -inf"),
    )
    for change, words in changes:
        with serving(VLLM(answers=[told(change)]), models=()) as server:
            engine = engine_of(server)
            with pytest.raises(InfrastructureFault, match=words):
                run(connected(engine, partial(engine.generate, "a", [5], GREEDY)))


def test_a_proxy_that_knows_no_server_for_now_is_waited_out() -> None:
    """While the server behind it is started anew it says 404, as it would of a path that is not there."""
    server_is, gone = VLLM(), [0]

    def reply(asked: Asked) -> Answer:
        gone[0] -= 1
        return Answer("404 page not found", 404) if gone[0] >= 0 else server_is(asked)

    async def work(engine: VLLMEngine) -> Any:
        async with engine.connected():
            gone[0] = 3
            return await engine.generate("a", [5], GREEDY)

    with serving(reply, models=()) as server:
        assert run(work(engine_of(server))).ids == (5, 5, 5)


def test_an_answer_that_cannot_be_read_is_a_fault_and_no_generation() -> None:
    nothing = Answer({"choices": []})
    with serving(VLLM(answers=[nothing] * 100), models=()) as server:
        engine = engine_of(server, patience=0.01)
        with pytest.raises(InfrastructureFault, match="gives no generation"):
            run(connected(engine, lambda: engine.generate("a", [5], GREEDY)))


def test_a_server_of_our_own_decodes_with_the_weights_dtype_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    from engines import model_of

    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    setup = EngineSetup(lambda: model_of("qwen3"), TOKENIZER, 64, 1, folder=tmp_path)
    assert dtype_of(setup, tmp_path) == "bfloat16"
    assert dtype_of(replace(setup, trained=True), tmp_path) == "float32"
    assert dtype_of(replace(setup, trained=True, dtype="float16"), tmp_path) == "float16"
