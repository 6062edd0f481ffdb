"""The engine for chat completions, and what servers of many makers answer beside completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import StandIn
from retcon.engine.types import SamplingParams
from retcon.evaluate.runner import run_evaluation
from retcon.http.asking import Answer as Given
from retcon.models.locating import locate
from retcon.models.refusals import said_by
from retcon.models.remote import RemoteModel
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool
from servers.answering import Answer, Asked, Reply, Server, python, said, serving

TASK = Task("t", "What is 6 times 7?", "42")
TOKENIZER = StandIn(ByteTokenizer(), "bytes")
Talk = Callable[[OpenAIEngine], Any]


def engine_of(url: str, **about: Any) -> OpenAIEngine:
    return OpenAIEngine(replace(OpenAISettings(url, wait=0.001), **about), TOKENIZER)


async def roll(engine: OpenAIEngine, id: str = "t/0/0") -> Trajectory:
    tool = ScriptedTool(lambda code: ("42", "ok", None))
    chat = Chat(TOKENIZER, style="retcon.engine.openai.messages:NATIVE")
    limits = RolloutLimits(max_tokens=8000, max_turns=6)
    context = RolloutContext(engine, chat, {"python": tool}, limits, SamplingParams(max_tokens=4000))
    return await run_rollout(TASK, context, id=id, seed=3)


def rolled(engine: OpenAIEngine, times: int = 1) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with engine.connected():
            return [await roll(engine, f"t/0/{n}") for n in range(times)]

    return asyncio.run(asyncio.wait_for(main(), 60))


def error(status: int, message: str, **more: Any) -> Answer:
    return Answer({"error": {"message": message, **more}}, status)


def scripted(*answers: Answer) -> Reply:
    left = list(answers)
    return lambda _: left.pop(0)


def most_of(server: Server) -> list[int | None]:
    return [asked.body.get("max_tokens") for asked in server.asked]


VLLM_OLD = (
    "This model's maximum context length is 4096 tokens. However, you requested 4021 tokens (1096 in the messages, "
    "3925 in the completion). Please reduce the length of the messages or completion."
)
VLLM_NEW = (
    "'max_tokens' or 'max_completion_tokens' is too large: 3925. This model's maximum context length is 4,096 tokens "
    "and your request has 1096 input tokens (3925 > 4096 - 1096)."
)
VLLM_NEWEST = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 output tokens and your prompt "
    "contains at least 1096 input tokens, for a total of at least 5096 tokens."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5096 "
    "tokens: 1096 tokens from the input messages and 5000 tokens for the completion."
)
OPENROUTER = (
    "This endpoint's maximum context length is 4096 tokens. However, you requested about 5096 tokens (1096 of text "
    "input, 5000 in the output)."
)
TGI = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1096 `inputs` tokens and 5000"


@pytest.mark.parametrize("message", [VLLM_OLD, VLLM_NEW, VLLM_NEWEST, SGLANG, OPENROUTER, TGI])
def test_a_server_with_less_room_than_is_asked_for_is_asked_for_what_it_has(message: str) -> None:
    """As many tokens as the limits leave may be more than its context does: no fault of the model."""
    full = Answer({"object": "error", "message": message, "type": "BadRequestError", "code": 400}, 400)
    with serving(scripted(full, said("42"))) as server:
        (made,) = rolled(engine_of(server.url))
    assert (made.stop, most_of(server)[1]) == ("answer", 3000)


def test_a_server_that_does_not_tell_its_room_is_asked_for_as_much_as_there_is() -> None:
    full = error(400, "the request exceeds the available context size", type="exceed_context_size_error", code=400)
    with serving(scripted(full, said("42"))) as server:
        (made,) = rolled(engine_of(server.url))
    assert (made.stop, most_of(server)[1]) == ("answer", None)


@pytest.mark.parametrize(
    "refused",
    [
        error(400, "request (5000 tokens) exceeds the available context size", type="exceed_context_size_error"),
        error(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        error(400, "prompt is too long: 5000 tokens > 4096 maximum", type="invalid_request_error"),
        error(400, VLLM_NEW.replace("1096 input", "4096 input")),
    ],
)
def test_a_history_that_leaves_no_room_in_any_words_ends_its_rollout(refused: Answer) -> None:
    with serving(lambda asked: refused if asked.body["messages"][-1]["role"] == "tool" else said("", python("1"))) as s:
        (made,) = rolled(engine_of(s.url))
    assert (made.stop, len(made.turns)) == ("length", 2)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 4000. This model supports at most 100 completion tokens, whereas you provided 4000.",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 100]",
        "`max_tokens` must be less than or equal to `100`, the maximum value for `max_tokens`",
    ],
)
def test_a_bound_on_one_message_is_kept_from_then_on(message: str) -> None:
    def reply(asked: Asked) -> Answer:
        return said("42") if asked.body["max_tokens"] <= 100 else error(400, message)

    with serving(reply) as server:
        assert [made.stop for made in rolled(engine_of(server.url), 2)] == ["answer"] * 2
    assert most_of(server)[1:] == [100, 100]


def test_models_that_call_max_tokens_otherwise_are_told_so_once() -> None:
    def reply(asked: Asked) -> Answer:
        if "max_tokens" not in asked.body:
            return said("42")
        told = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return error(400, told, param="max_tokens", code="unsupported_parameter")

    with serving(reply) as server:
        assert [made.stop for made in rolled(engine_of(server.url), 2)] == ["answer"] * 2
    assert [asked.body.get("max_completion_tokens") for asked in server.asked] == [None, 4000, 4000]


@pytest.mark.parametrize("finish", ["abort", "error", "insufficient_system_resource", "network_error"])
def test_an_answer_that_the_server_broke_off_is_asked_for_again(finish: str) -> None:
    with serving(scripted(said("It is", finish=finish), said("It is 42."))) as server:
        (made,) = rolled(engine_of(server.url))
    assert made.turns[0].text == "It is 42.<|im_end|>"
    with serving(lambda _: said("It is", finish=finish)) as server:
        assert rolled(engine_of(server.url))[0].stop == "infrastructure"


def test_what_a_content_filter_cut_is_no_answer_and_no_end_of_the_work() -> None:
    banned = error(400, "The response was filtered", code="content_filter")
    reasons = ("content_filter", "content_filter: RECITATION", "sensitive")
    for answer in (*(said("It", finish=reason) for reason in reasons), banned):
        with serving(scripted(answer, said("42"))) as server:
            assert [made.stop for made in rolled(engine_of(server.url), 2)] == ["infrastructure", "answer"]


@pytest.mark.parametrize(
    "passing",
    [
        Answer({"error": {"message": "Provider returned error", "code": 502}}),
        Answer({"error": {"message": "Rate limit", "code": 429}}),
        Answer({"error": {"message": "Overloaded", "type": "overloaded_error"}}),
        error(529, "Overloaded"),
        error(409, "conflict"),
        Answer("<html>521</html>", 521),
        Answer('{"choices": [{"message": {"content": "It'),
        Answer("\n\n\n"),
        Answer(""),
        Answer({}, 429, {"Retry-After": "0.01"}),
    ],
)
def test_what_passes_is_asked_again_however_it_is_said(passing: Answer) -> None:
    with serving(scripted(passing, said("42"))) as server:
        assert rolled(engine_of(server.url))[0].stop == "answer"


def test_a_refusal_with_status_200_says_what_it_said() -> None:
    with serving(lambda _: Answer({"error": {"message": "No such thing", "code": 400}})) as server:
        with pytest.raises(EngineError, match="status 400: No such thing"):
            rolled(engine_of(server.url))
        assert len(server.asked) == 1


def test_one_request_that_is_refused_is_no_end_of_the_others() -> None:
    """Its rollout is lost, and nothing that others have done."""
    answers = scripted(said("42"), error(400, "Invalid unicode in the prompt"), said("42"))
    with serving(answers) as server:
        stops = [made.stop for made in rolled(engine_of(server.url), 3)]
    assert stops == ["answer", "infrastructure", "answer"]
    expired = scripted(said("42"), error(401, "The key has expired"))
    with serving(expired) as server, pytest.raises(EngineError, match="The key has expired"):
        rolled(engine_of(server.url), 3)


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("wrote", ['{"code": 6*7', "[1]"])
def test_arguments_that_a_server_cannot_take_back_are_told_within_an_object(status: int, wrote: str) -> None:
    """vLLM, SGLang, llama.cpp and Ollama read the arguments of past calls as JSON before they render them."""

    def reply(asked: Asked) -> Answer:
        calls = [call for message in asked.body["messages"] for call in message.get("tool_calls", ())]
        if not calls:
            return said(None, {"name": "python", "arguments": wrote, "id": "c"})
        try:
            json.loads(calls[0]["function"]["arguments"]).items()
        except (ValueError, AttributeError) as wrong:
            return error(status, str(wrong))
        return said("42")

    with serving(reply) as server:
        engine = engine_of(server.url)
        assert [made.stop for made in rolled(engine, 2)] == ["answer"] * 2
    told = [m["tool_calls"][0]["function"]["arguments"] for a in server.asked for m in a.body["messages"][1:2]]
    assert [text == wrote for text in told] == [True] * (len(told) - 2) + [False] * 2
    assert json.loads(told[-1]) == {"arguments": wrote}


TOOLS_VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(400, TOOLS_VLLM), r"parser to be set; engine\.calls = 'fence' asks without"),
        (error(404, "No endpoints found that support tool use."), r"engine\.calls = 'fence'"),
        (error(400, "seed: Extra inputs are not permitted"), r"engine\.seeds = false"),
        (error(400, "'temperature' does not support 0.5 with this model."), r"; rollout\.temperature"),
        (Answer({"detail": [{"loc": ["body", "seed"], "msg": "extra"}]}, 422), r"engine\.seeds = false"),
        (Answer("", 307, {"Location": "https://x.example/v1"}), "it redirects to https://x.example/v1: give that URL"),
        (Answer("<html><style>a{}</style><h1>403</h1>Forbidden</html>", 403), "status 403: 403 Forbidden; no key"),
        (error(429, "You exceeded your current quota", code="insufficient_quota"), "status 429: You exceeded"),
        (error(429, "Your account is suspended", type="exceeded_current_quota_error"), "429: Your account is"),
        (error(429, "Insufficient balance or no resource package.", code="1113"), "status 429: Insufficient balance"),
        (error(429, "Request too large for big on tokens per min: Limit 9, Requested 12."), "429: Request too large"),
    ],
)
def test_a_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda _: answer) as server:
        with pytest.raises(EngineError, match=words):
            rolled(engine_of(server.url))
        assert len(server.asked) == 1


def listing(models: object, path: str = "/v1", reply: Reply | None = None) -> Reply:
    """A server whose API is at `path` alone, and says of its models what is given."""

    def answer(asked: Asked) -> Answer:
        if asked.path == f"{path}/models":
            return Answer(models)
        if asked.path.startswith(f"{path}/chat/completions"):
            return reply(asked) if reply is not None else said("42")
        return Answer({"detail": "Not Found"}, 404)

    return answer


ONE = {"data": [{"id": "small"}]}


@pytest.mark.parametrize("given", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1?api-version=1"])
def test_the_api_is_found_however_its_url_is_given(given: str) -> None:
    def reply(asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        return listing(ONE)(replace(asked, path=path)) if query == given.partition("?")[2] else Answer({}, 404)

    with serving(reply, models=()) as server:
        engine = engine_of(server.url.removesuffix("/v1") + given)
        assert rolled(engine)[0].stop == "answer"


@pytest.mark.parametrize(
    ("models", "wanted", "named"),
    [
        ([{"id": "a/b", "type": "chat"}, {"id": "c/d"}], "c/d", "c/d"),  # Together's list
        ({"data": [{"id": "qwen3:latest"}]}, "qwen3", "qwen3"),  # Ollama's tag need not be said
        ({"data": [{"id": f"model-{n}"} for n in range(400)]}, "my-deployment", "my-deployment"),  # Azure's
        ({"data": None}, "some", "some"),
    ],
)
def test_models_are_found_in_every_makers_list_and_beside_it(models: object, wanted: str, named: str) -> None:
    with serving(listing(models), models=()) as server:
        rolled(engine_of(server.url, model=wanted))
    assert server.asked[-1].body["model"] == named


@pytest.mark.parametrize(
    ("reply", "model", "words"),
    [
        (listing(ONE, "/api/v2"), "", r"status 404: Not Found: it does not say what it serves; is .*ends in /v1"),
        (listing(ONE, "/api/v2"), "small", r"status 404: Not Found: is http.*/v1 the base of its API\?"),
        (lambda _: Answer("<html>Sign in</html>"), "", r"gives no JSON \(Sign in\): .* the base of its API\?"),
        (lambda _: Answer({"error": "Unexpected endpoint or method."}), "", "Unexpected endpoint or method"),
        (
            listing({"data": [{"id": f"m{n}"} for n in range(400)]}, reply=lambda _: error(404, "no such model")),
            "big",
            r"serves no model 'big'; there are: m0, .*, m7 and 392 more \(.*no such model\)$",
        ),
    ],
)
def test_a_wrong_base_or_model_is_told_in_few_words(reply: Reply, model: str, words: str) -> None:
    with serving(reply, models=()) as server, pytest.raises(EngineError, match=words):
        rolled(engine_of(server.url, model=model))


@pytest.mark.parametrize(
    ("owner", "sent"),
    [
        ("vllm", {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        ("llamacpp", {"top_k": -1, "min_p": 0.0}),
        ("openai", {}),
    ],
)
def test_servers_with_defaults_of_their_own_are_told_that_nothing_is_cut(owner: str, sent: Mapping[str, Any]) -> None:
    with serving(listing({"data": [{"id": "small", "owned_by": owner}]}), models=()) as server:
        rolled(engine_of(server.url))
    body = server.asked[0].body
    assert {key: body[key] for key in ("top_k", "min_p", "repetition_penalty") if key in body} == sent


def test_a_server_that_is_back_in_time_loses_no_rollout() -> None:
    down = [Answer(status=None)] * 5 + [error(503, "Loading model", type="unavailable_error")] * 2
    with serving(scripted(said("42"), *down, said("42"))) as server:
        engine = engine_of(server.url, attempts=2, patience=30)
        assert [made.stop for made in rolled(engine, 2)] == ["answer"] * 2
    assert engine.stats.retried == 7


def test_patience_is_with_the_server_and_not_with_each_request() -> None:
    """One that stays away is not waited for anew by every rollout."""
    left = [said("42")]
    with serving(lambda _: left.pop() if left else Answer(status=None)) as server:
        made = rolled(engine_of(server.url, attempts=2, patience=0.05), 4)
    assert [one.stop for one in made] == ["answer", *["infrastructure"] * 3]
    assert len(server.asked) < 1 + 15 + 2 * 2
    assert [asked.body["seed"] for asked in server.asked][-4:] == [server.asked[-1].body["seed"]] * 4


def test_an_evaluation_that_lost_too_much_says_why_and_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda _: error(503, "Loading model")) as server:
        given = ["engine.kind=openai", f"engine.url={server.url}", "engine.attempts=1", "engine.patience=0"]
        recipe = load_recipe(None, [*given, "evaluate.problems=2", "evaluate.samples=2", "evaluate.top_p=1"])
        words = r"4 of 4 rollouts were lost .*, most often as the model at http.* status 503: Loading model, too many"
        with pytest.raises(SandboxUnavailable, match=words):
            run_evaluation(recipe, locate("base"), tmp_path / "eval")
    told = [record.getMessage() for record in caplog.records if record.name == "retcon.rollout.context"]
    assert len(told) == 1
    assert "is lost: the model at http" in told[0]


def test_a_whole_message_without_room_is_told_of_as_cut(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda _: said("It is 42." * 500)) as server:
        engine = engine_of(server.url)
        assert [made.stop for made in rolled(engine, 2)] == ["length"] * 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert "4501 tokens as bytes counts them, and there is room for 4000: raise engine.context" in told
    assert engine.stats.cut == 2


def test_a_request_to_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(lambda _: said("42")) as server:
        assert rolled(engine_of(server.url))[0].stop == "answer"


def test_azures_own_name_of_the_key_is_sent_to_azure_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " secret\n")
    azure = RemoteModel("model", "https://mine.openai.azure.com/openai/deployments/d?api-version=2024-10-21", "d")
    assert azure._headers() == {"api-key": "secret"}
    assert RemoteModel("model", "https://azure.com.example/v1", "d")._headers() == {}


def test_an_error_of_any_shape_is_read() -> None:
    for body in ("", "[]", "null", "{", '{"error": null}', '{"error": ["x"]}', '{"detail": {"a": 1}}', "[" * 9999):
        found = said_by(Given("http://x", 400, {}, body.encode()))
        assert found is not None
        assert found.status == 400
    assert said_by(Given("http://x", 200, {}, b'{"choices": [], "error": null}')) is None
