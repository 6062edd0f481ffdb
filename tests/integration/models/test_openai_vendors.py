"""The engine for chat completions, and what servers of many makers answer beside completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, SandboxUnavailable
from retcon.core.types import Trajectory, ids_of
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import SurrogateTokenizer
from retcon.engine.types import SamplingParams
from retcon.evaluate.runner import run_evaluation
from retcon.models.locating import locate
from retcon.models.remote import RemoteModel
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.tasks.types import Task
from retcon.tools.scripted import ScriptedTool
from servers.answering import Answer, Asked, Reply, Server, python, said, serving

TASK = Task("t", "What is 6 times 7?", "42")
TOKENIZER = SurrogateTokenizer(ByteTokenizer(), "bytes")


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


VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: 3925. This model's maximum context length is 4,096 tokens "
    "and your request has 1096 input tokens (3925 > 4096 - 1096)."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5096 "
    "tokens: 1096 tokens from the input messages and 5000 tokens for the completion."
)
ANTHROPIC = "input length and `max_tokens` exceed context limit: 940 + 300 > 1000, decrease input length"
LLAMA_CPP = error(500, "the request exceeds the available context", type="exceed_context_size_error", code=500)
OPENAI = error(400, "Please reduce the length of the messages.", code="context_length_exceeded", param="messages")
FULL = [LLAMA_CPP, OPENAI, *(error(400, words) for words in (VLLM, SGLANG, ANTHROPIC))]


@pytest.mark.parametrize("full", FULL)
def test_less_room_than_max_tokens_is_no_fault_of_the_model(full: Answer) -> None:
    with serving(lambda asked: full if "max_tokens" in asked.body else said("42")) as server:
        assert [made.stop for made in rolled(engine_of(server.url, attempts=1), 2)] == ["answer"] * 2
    assert most_of(server) == [4000, None] * 2, "another history may leave the room"


@pytest.mark.parametrize("full", [*FULL, error(400, "prompt is too long: 5000 tokens > 4096 maximum")])
def test_a_history_that_leaves_no_room_ends_its_rollout(full: Answer) -> None:
    with serving(lambda asked: full if asked.body["messages"][-1]["role"] == "tool" else said("", python("1"))) as s:
        (made,) = rolled(engine_of(s.url, attempts=1))
    assert (made.stop, len(made.turns)) == ("length", 2)


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "max_tokens is too large: 4000. This model supports at most 100 completion tokens."),
        error(400, "Invalid value", param="max_tokens", code="invalid_value"),
        error(422, "`max_new_tokens` must be less than 100"),
    ],
)
def test_a_server_that_bounds_one_message_is_no_longer_sent_max_tokens(refusal: Answer) -> None:
    with serving(lambda asked: refusal if "max_tokens" in asked.body else said("42")) as server:
        assert [made.stop for made in rolled(engine_of(server.url), 2)] == ["answer"] * 2
    assert most_of(server) == [4000, None, None]


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


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("wrote", ['{"code": 6*7', "[1]"])
def test_arguments_that_a_server_cannot_take_back_are_sent_within_an_object(status: int, wrote: str) -> None:
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
        (error(400, "'temperature' does not support 0.5."), r"gets no temperature if rollout\.temperature = 1"),
        (Answer({"detail": [{"loc": ["body", "seed"], "msg": "extra"}]}, 422), r"engine\.seeds = false"),
        (Answer("", 307, {"Location": "https://x.example/v1"}), "it redirects to https://x.example/v1: give that URL"),
        (Answer("<html><style>a{}</style><h1>403</h1>Forbidden</html>", 403), "status 403: 403 Forbidden; no key"),
        (error(429, "You exceeded your current quota", code="insufficient_quota"), "status 429: You exceeded"),
        (error(429, "Your account is suspended", type="exceeded_current_quota_error"), "429: Your account is"),
    ],
)
def test_a_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda _: answer) as server:
        with pytest.raises(EngineError, match=words):
            rolled(engine_of(server.url))
        assert len(server.asked) <= 2, "not retried"


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
        (listing(ONE, "/api/v2"), "", r"status 404: Not Found: it lists no models; is .*ends in /v1"),
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


T = TypeVar("T")
RENAMED = error(
    400,
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    param="max_tokens",
    code="unsupported_parameter",
)


def asking(url: str, work: Callable[[RemoteModel], Awaitable[T]]) -> T:
    """Run `work` with a model at `url`."""

    async def main() -> T:
        model = RemoteModel("model", url, "small", attempts=1, wait=0.001)
        try:
            return await asyncio.wait_for(work(model), 60)
        finally:
            await model.close()

    return asyncio.run(main())


def test_requests_refused_at_once_keep_max_tokens_under_its_new_name() -> None:
    together = Barrier(4, timeout=30)

    def reply(asked: Asked) -> Answer:
        if "max_tokens" not in asked.body:
            return said("42")
        together.wait()
        return RENAMED

    async def work(model: RemoteModel) -> None:
        await asyncio.gather(*(model.message([], max_tokens=100) for _ in range(4)))
        await model.message([], max_tokens=100)

    with serving(reply) as server:
        asking(server.url, work)
    taken = [asked.body for asked in server.asked if "max_tokens" not in asked.body]
    assert [body.get("max_completion_tokens") for body in taken] == [100] * 5
    assert len(server.asked) == 9


def generate(url: str, *asked: SamplingParams) -> None:
    """One generation with each of these parameters, by an engine at `url`."""
    tokenizer = SurrogateTokenizer(ByteTokenizer(), "bytes")
    ids: Sequence[int] = ids_of(Chat(tokenizer, style="retcon.engine.openai.messages:NATIVE").prompt("hello"))

    async def main() -> None:
        engine = OpenAIEngine(OpenAISettings(url, attempts=1), tokenizer)
        async with engine.connected():
            for params in asked:
                await engine.generate("r", ids, params)

    asyncio.run(asyncio.wait_for(main(), 60))


SAMPLED = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10, seed=2**40 + 5)


@pytest.mark.parametrize("owner", ["vllm", "openai"])
def test_each_request_has_its_own_sampling_and_seed(owner: str) -> None:
    listed = Answer({"data": [{"id": "small", "owned_by": owner}]})

    def reply(asked: Asked) -> Answer:
        return listed if asked.path.endswith("/models") else said("42")

    with serving(reply, models=()) as server:
        generate(server.url, SAMPLED, replace(SAMPLED, top_k=20, min_p=0.1, seed=7))
    keys = ("temperature", "top_p", "top_k", "min_p", "seed")
    sent = [tuple(asked.body.get(key) for key in keys) for asked in server.asked]
    uncut = (-1, 0.0) if owner == "vllm" else (None, None)
    assert sent == [(0.7, 0.9, *uncut, 5), (0.7, 0.9, 20, 0.1, 7)]


@pytest.mark.parametrize("finish", ["model_length", "model_context_window_exceeded"])
def test_finish_reasons_of_a_full_context_are_read_as_length(finish: str) -> None:
    async def work(model: RemoteModel) -> None:
        assert (await model.message([]))["finish_reason"] == "length"

    with serving(lambda _: said("It is", finish=finish)) as server:
        asking(server.url, work)


# How long a request is made to a server that limits the rate and answers others, or is not there.
