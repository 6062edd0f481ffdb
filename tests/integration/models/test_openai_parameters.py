"""Parameters of a request that a server does not take as they are: what it is asked with instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from threading import Barrier
from typing import Any, TypeVar

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import EngineError
from retcon.core.types import ids_of
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import StandIn
from retcon.engine.types import SamplingParams
from retcon.models.refusals import Said
from retcon.models.remote import Refused, RemoteModel, TooLong
from servers.answering import Answer, Asked, said, serving

T = TypeVar("T")
RENAMED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def refused(message: str) -> Answer:
    return Answer({"error": {"message": message, "type": "invalid_request_error"}}, 400)


def asking(url: str, work: Callable[[RemoteModel], Awaitable[T]]) -> T:
    """What `work` gives with a model at `url`."""

    async def main() -> T:
        model = RemoteModel("model", url, "small", attempts=1, wait=0.001)
        try:
            return await asyncio.wait_for(work(model), 60)
        finally:
            await model.close()

    return asyncio.run(main())


def test_requests_that_are_all_refused_at_once_keep_their_limit_under_its_new_name() -> None:
    together = Barrier(4, timeout=30)

    def reply(asked: Asked) -> Answer:
        if "max_tokens" not in asked.body:
            return said("42")
        together.wait()
        return refused(RENAMED)

    async def work(model: RemoteModel) -> None:
        await asyncio.gather(*(model.message([], max_tokens=100) for _ in range(4)))

    with serving(reply) as server:
        asking(server.url, work)
    taken = [asked.body for asked in server.asked if "max_tokens" not in asked.body]
    assert [body.get("max_completion_tokens") for body in taken] == [100] * 4


BOTH = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
NO_TEMPERATURE = "Unsupported parameter: 'temperature' is not supported with this model."
NO_TOP_P = "Unsupported parameter: 'top_p' is not supported with this model."
DEPRECATED = "`temperature` is deprecated for this model."
NEITHER = "temperature and top_p are not supported with this model"


def sampled(message: str, takes: Callable[[dict[str, Any]], bool], *asked: tuple[float, float]) -> list[dict[str, Any]]:
    """What a server that takes some parameters alone has answered, of requests with temperature and top_p."""

    async def work(model: RemoteModel) -> None:
        for temperature, top_p in asked:
            await model.message([], temperature=temperature, top_p=top_p)

    with serving(lambda one: said("42") if takes(one.body) else refused(message)) as server:
        asking(server.url, work)
    sent = [{key: one.body[key] for key in ("temperature", "top_p") if key in one.body} for one in server.asked]
    assert len(sent) <= len(asked) + 2, "it is told once"
    return [body for body in sent if takes(body)]


@pytest.mark.parametrize(
    ("message", "takes", "asked", "sent"),
    [
        (BOTH, lambda body: len({"temperature", "top_p"} & set(body)) < 2, (0.7, 1), {"temperature": 0.7}),
        (BOTH, lambda body: len({"temperature", "top_p"} & set(body)) < 2, (1, 0.9), {"top_p": 0.9}),
        (BOTH, lambda body: len({"temperature", "top_p"} & set(body)) < 2, (1.0, 1.0), {"temperature": 1.0}),
        (NO_TEMPERATURE, lambda body: "temperature" not in body, (1.0, 0.9), {"top_p": 0.9}),
        (DEPRECATED, lambda body: "temperature" not in body, (1.0, 1.0), {"top_p": 1.0}),
        (NO_TOP_P, lambda body: "top_p" not in body, (0.7, 1.0), {"temperature": 0.7}),
        (NEITHER, lambda body: not {"temperature", "top_p"} & set(body), (1.0, 1.0), {}),
    ],
)
def test_what_is_the_default_is_left_out_where_a_server_does_not_take_it(
    message: str, takes: Any, asked: tuple[float, float], sent: dict[str, float]
) -> None:
    assert sampled(message, takes, asked, asked) == [sent, sent]


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported parameter: 'reasoning_effort'. Supported parameters are: model, messages, temperature, top_p.",
        "seed is not supported for this model; supported: temperature, top_p",
        "logprobs are not supported when temperature is set",
        "Unsupported parameter: 'reasoning_effort' is not supported with this model. Use temperature instead.",
    ],
)
def test_a_refusal_of_another_parameter_leaves_these_as_they_are(message: str) -> None:
    assert Said(400, message).not_taken == ()


BOTH_NAMES = ("top_p", "temperature")


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("The following parameters are not supported: temperature, top_p", BOTH_NAMES),
        ("Unsupported parameters: ['temperature', 'top_p']", BOTH_NAMES),
        ("Unsupported parameter(s): seed, top_p", ("top_p",)),
        ("Extra inputs are not permitted: top_p", ("top_p",)),
        ("Argument not supported on this model: temperature", ("temperature",)),
        ("temperature parameter is not supported", ("temperature",)),
        ("The parameter `temperature` specified in the request is not supported", ("temperature",)),
        ("temperature is currently not supported", ("temperature",)),
        ("`temperature`/`top_p` cannot both be set", BOTH_NAMES),
        ("You cannot both specify temperature and top_p", BOTH_NAMES),
        ("top_p cannot be specified together with temperature", BOTH_NAMES),
        (
            "[{'type': 'extra_forbidden', 'loc': ('body', 'top_p'), 'msg': 'Extra inputs are not permitted'}]",
            ("top_p",),
        ),
        ("These parameters are not supported: seed, logprobs. Use temperature, top_p", ()),
        ("temperature: Input should be less than or equal to 1", ()),
        ("Unsupported value: 'temperature' does not support 0.7 with this model.", ()),
    ],
)
def test_which_are_not_taken_is_read_out_of_many_wordings(message: str, names: tuple[str, ...]) -> None:
    assert Said(400, message).not_taken == names


def test_what_fastapi_takes_for_an_extra_input_is_left_out() -> None:
    told = [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 1.0}
            for name in ("temperature", "top_p")]  # fmt: skip

    def reply(asked: Asked) -> Answer:
        extra = [one for one in told if one["loc"][1] in asked.body]
        return Answer({"detail": extra}, 422) if extra else said("42")

    async def work(model: RemoteModel) -> None:
        await model.message([], temperature=1.0, top_p=1.0)

    with serving(reply) as server:
        asking(server.url, work)
    assert not set(BOTH_NAMES) & set(server.asked[-1].body)


def test_what_does_not_help_one_request_is_not_left_out_of_others() -> None:
    async def work(model: RemoteModel) -> None:
        with pytest.raises(Refused):
            await model.message([], temperature=1.0, tools=[1])
        await model.message([], temperature=1.0)

    with serving(lambda one: refused(NO_TEMPERATURE) if "tools" in one.body else said("42")) as server:
        asking(server.url, work)
    assert [one.body.get("temperature") for one in server.asked] == [1.0, None, 1.0]


def test_another_value_is_never_left_out() -> None:
    with pytest.raises(Refused, match="not supported"):
        sampled(NO_TEMPERATURE, lambda body: "temperature" not in body, (1.0, 1.0), (0.5, 1.0))
    with pytest.raises(Refused, match="only one"):
        sampled(BOTH, lambda body: len({"temperature", "top_p"} & set(body)) < 2, (0.7, 0.9))


def generate(url: str, *asked: SamplingParams) -> None:
    """One generation with each of these parameters, by an engine at `url`."""
    tokenizer = StandIn(ByteTokenizer(), "bytes")
    ids: Sequence[int] = ids_of(Chat(tokenizer, style="retcon.engine.openai.messages:NATIVE").prompt("hello"))

    async def main() -> None:
        engine = OpenAIEngine(OpenAISettings(url, attempts=1), tokenizer)
        async with engine.connected():
            for params in asked:
                await engine.generate("r", ids, params)

    asyncio.run(asyncio.wait_for(main(), 60))


SAMPLED = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10, seed=2**40 + 5)


@pytest.mark.parametrize("message", [BOTH, NO_TEMPERATURE, NO_TOP_P])
def test_a_refusal_says_which_value_would_not_be_sent(message: str) -> None:
    named = "top_p" if "top_p" in message else "temperature"
    with serving(lambda _: refused(message)) as server, pytest.raises(EngineError, match=rf"; rollout\.{named} = 1 "):
        generate(server.url, SAMPLED)


@pytest.mark.parametrize("owner", ["vllm", "openai"])
def test_sampling_and_seed_are_those_of_each_request(owner: str) -> None:
    """What a server is always told to be without gives way to what is asked for."""
    listed = Answer({"data": [{"id": "small", "owned_by": owner}]})

    def reply(asked: Asked) -> Answer:
        return listed if asked.path.endswith("/models") else said("42")

    with serving(reply, models=()) as server:
        generate(server.url, SAMPLED, replace(SAMPLED, top_k=20, min_p=0.1, seed=7))
    keys = ("temperature", "top_p", "top_k", "min_p", "seed")
    sent = [tuple(asked.body.get(key) for key in keys) for asked in server.asked]
    uncut = (-1, 0.0) if owner == "vllm" else (None, None)
    assert sent == [(0.7, 0.9, *uncut, 5), (0.7, 0.9, 20, 0.1, 7)]


ANTHROPIC = "max_tokens: 300 > 100, which is the maximum allowed number of output tokens for a-model"
DASHSCOPE = "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 100]"
NO_ROOM = "input length and `max_tokens` exceed context limit: {} + 300 > 1000, decrease input length or `max_tokens`"


@pytest.mark.parametrize("message", [ANTHROPIC, DASHSCOPE])
def test_a_bound_in_these_words_is_kept_from_then_on(message: str) -> None:
    async def work(model: RemoteModel) -> None:
        for _ in range(2):
            await model.message([], max_tokens=300)

    with serving(lambda one: said("42") if one.body["max_tokens"] <= 100 else refused(message)) as server:
        asking(server.url, work)
    assert [one.body["max_tokens"] for one in server.asked] == [300, 100, 100]


def test_the_room_that_an_input_leaves_is_asked_for() -> None:
    message = NO_ROOM.format(940)
    with serving(lambda one: said("42") if one.body["max_tokens"] <= 60 else refused(message)) as server:
        asking(server.url, lambda model: model.message([], max_tokens=300))
    assert [one.body["max_tokens"] for one in server.asked] == [300, 60]


@pytest.mark.parametrize(
    "message",
    [
        NO_ROOM.format(1000),
        "Your request exceeded model token limit: 1000 (requested: 1300)",
        "This model's maximum prompt length is 1000 but the request contains 1300 tokens.",
        "The decoder prompt (length 1300) is longer than the maximum model length of 1000.",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 1000]",
        "Input is too long for requested model.",
        "Prompt exceeds max length",
        "too many tokens: total number of tokens in the prompt cannot exceed 1000 - received 1300.",
    ],
)
def test_an_input_that_leaves_no_room_is_too_long(message: str) -> None:
    assert Said(400, message).too_long
    with serving(lambda _: refused(message)) as server, pytest.raises(TooLong):
        asking(server.url, lambda model: model.message([], max_tokens=300))


@pytest.mark.parametrize("finish", ["model_length", "model_context_window_exceeded"])
def test_a_message_that_the_context_has_cut_is_cut_whatever_that_is_called(finish: str) -> None:
    async def work(model: RemoteModel) -> None:
        assert (await model.message([]))["finish_reason"] == "length"

    with serving(lambda _: said("It is", finish=finish)) as server:
        asking(server.url, work)
