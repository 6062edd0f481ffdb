"""What the agent endpoint refuses, and how it goes on: bounds, faults, clients that go away, tokens, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from playing import call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import EngineError, RecipeError
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.rollout.context import RolloutLimits
from retcon.serve.errors import ServeSettings
from servers.agent import MODEL, SEARCH, Asking, Message, asked, context_of, said, serving, user

NAMED = {"type": "function", "function": {"name": "search"}}
CALLED = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]}
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x"}}]


class Holding(ScriptedEngine):
    """An engine whose generations wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer(), lambda *_: "Yes.")
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.cancelled = 0
        self.seeds: list[int] = []

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.begun.set()
        self.seeds.append(params.seed)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().generate(request_id, ids, params)


def body(messages: Sequence[Message] = (), **more: object) -> dict[str, object]:
    return {"model": MODEL, "messages": list(messages) or [user("Go.")], **more}


@pytest.mark.parametrize(
    ("request_", "param", "says"),
    [
        ({"messages": [user("x")]}, "model", "'model' is missing"),
        (body(modl=1), "modl", "unknown field 'modl'"),
        (body(model="smal"), "model", "did you mean 'small'?"),
        (body(temperature=-1), "temperature", "0 or more"),
        (body(temperature="hot"), "temperature", "float"),
        (body(top_p=0), "top_p", "above 0"),
        (body(top_k=-1), "top_k", "from 0 (off)"),
        (body(top_k=10**400), "top_k", "to 2147483647"),
        (body(max_tokens=0), "max_tokens", "1 or more"),
        (body(stop=[""]), "stop", "none empty"),
        (body(stop=["a"] * 5), "stop", "up to 4"),
        (body(n=2), "n", "served only as 1"),
        (body(logprobs=True), "logprobs", "served only as False"),
        (body(response_format={"type": "json_object"}), "response_format", "served only as"),
        (body(tool_choice=NAMED, tools=[SEARCH]), "tool_choice", "not enforced"),
        (body(tools=[{"type": "web_search"}]), "tools[0].type", "functions alone"),
        (body(tools=[SEARCH, SEARCH]), "tools[1].function.name", "another tool too"),
        (
            body(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]),
            "tools[0].function.parameters",
            "not a JSON schema",
        ),
        (body([{"role": "usr", "content": "x"}]), "messages[0].role", "did you mean 'user'?"),
        (body([{"role": "user"}]), "messages[0].content", "no content"),
        (body([{"content": "x"}]), "messages[0].role", "missing"),
        (body([{"role": "user", "content": IMAGE}]), "messages[0].content[0].type", "text alone"),
        (body([user("x"), {"role": "system", "content": "late"}, user("y")]), "messages[1].role", "before all others"),
        (body([CALLED, {"role": "tool", "content": "1", "tool_call_id": "a"}]), "messages", "begins with"),
        (body([user("x"), CALLED, {"role": "tool", "content": "1"}]), "messages[2].tool_call_id", "which call"),
        (
            body([user("x"), CALLED, {"role": "tool", "content": "1", "tool_call_id": "b"}]),
            "messages[2].tool_call_id",
            "no call 'b' is open",
        ),
        (body([user("x"), CALLED, user("y")]), "messages", "no message of a tool answers the call a"),
    ],
)
def test_what_is_wrong_is_named(request_: Any, param: str, says: str) -> None:
    async def play(client: Asking) -> None:
        for stream in (False, True):
            answer = await client.http.post("/v1/chat/completions", json={**request_, "stream": stream})
            error = answer.json()["error"]
            assert answer.status_code == (404 if "smal'" in error["message"] else 400), answer.text
            assert error["param"] == param
            assert says in error["message"]
            assert error["type"] in ("invalid_request_error", "not_found_error")
        assert len(client.agent.sessions) == 0

    asked(play, ["Yes."])


def test_bodies_paths_and_names_that_are_none() -> None:
    async def play(client: Asking) -> None:
        no_json = await client.http.post("/v1/chat/completions", content=b"{")
        assert (no_json.status_code, no_json.json()["error"]["code"]) == (400, "invalid_json")
        long = await client.http.post("/v1/chat/completions", content=b" " * 2000)
        assert long.status_code == 413
        rated = await client.http.post("/v1/sessions/a/reward", content=b"x" * 1001)
        assert (rated.status_code, rated.json()["error"]["code"]) == (413, "too_long")
        lost = await client.http.post("/v1/chat/completion", json={})
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "no_such_endpoint")
        assert "did you mean '/v1/chat/completions'" in lost.json()["error"]["message"]
        wrong = await client.http.get("/v1/chat/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        for name in ("a/b", "../x", "", "a" * 101, ".hidden"):
            assert (await client.post([user("x")], session=name)).json()["error"]["param"] == "x-retcon-session"
        assert (await client.post([user("x")], task="")).status_code == 400
        assert (await client.http.get("/v1/sessions/none")).status_code == 404
        found = (await client.http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in found] == [MODEL, f"{MODEL}:chat"]
        assert (await client.http.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
        assert (await client.http.get("/v1/models/other")).status_code == 404
        assert (await client.http.get("/v1/models/")).json()["data"] == found
        assert (await client.http.get("/health")).json()["status"] == "ok"

    asked(play, ["Yes."], max_body=1000)


def test_turns_are_bounded_in_an_answer_and_not_in_a_conversation() -> None:
    async def play(client: Asking) -> None:
        told: list[Message] = []
        for _ in range(3):
            answer = await client.chat([*told, user("Go.")])
            assert (answer["retcon"]["turns"], answer["choices"][0]["finish_reason"]) == (2, "length")
            told += [user("Go."), said(answer)]

    asked(play, lambda *_: call("1", "again "), limits=RolloutLimits(4000, 2))


def test_a_session_gets_so_many_tokens() -> None:
    async def play(client: Asking) -> None:
        first = await client.chat([user("Go.")], session="s")
        second = await client.chat([user("Go.")], session="s")
        assert [one["usage"]["completion_tokens"] for one in (first, second)] == [5, 2]
        third = await client.post([user("Go.")], session="s")
        assert third.json()["error"]["code"] == "session_tokens"
        await client.chat([user("Go.")], session="other")

    asked(play, lambda *_: "Yes.", session_tokens=7)


def test_what_an_engine_refuses_is_an_error_of_the_server() -> None:
    async def play(client: Asking) -> None:
        answer = await client.post([user("Go.")])
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine")
        assert len(client.agent.sessions) == 0

    asked(play, [EngineError("no such id")])


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_ends_its_generation_and_frees_the_engine(stream: bool) -> None:
    async def main() -> None:
        engine = Holding()
        async with serving(context_of(engine)) as url:
            async with httpx.AsyncClient(base_url=url) as http:
                asking = asyncio.ensure_future(
                    http.post("/v1/chat/completions", json=body(stream=stream), headers={"X-Retcon-Session": "s"})
                )
                await engine.begun.wait()
                asking.cancel()
            while not engine.released:
                await asyncio.sleep(0.01)
            assert (engine.cancelled, engine.released) == (1, ["s/0.1"])
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/health")).json()["running"] == 0
                assert (await http.get("/v1/sessions")).json()["data"] == []

    asyncio.run(asyncio.wait_for(main(), 300))


def test_what_is_too_much_is_refused_for_now() -> None:
    async def main() -> None:
        engine = Holding()
        async with serving(context_of(engine), at_once=1) as url, httpx.AsyncClient(base_url=url) as http:
            first = asyncio.ensure_future(http.post("/v1/chat/completions", json=body()))
            await engine.begun.wait()
            refused = await http.post("/v1/chat/completions", json=body())
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "busy"
            engine.go.set()
            assert (await first).status_code == 200
            assert (await http.post("/v1/chat/completions", json=body())).status_code == 200

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_session_is_not_ended_under_a_request() -> None:
    async def main() -> None:
        engine = Holding()
        async with serving(context_of(engine)) as url, httpx.AsyncClient(base_url=url) as http:
            named = {"X-Retcon-Session": "s"}
            first = asyncio.ensure_future(http.post("/v1/chat/completions", json=body(), headers=named))
            await engine.begun.wait()
            assert (await http.post("/v1/sessions/s/end")).status_code == 409
            assert (await http.delete("/v1/sessions/s")).status_code == 409
            engine.go.set()
            assert (await first).status_code == 200
            assert (await http.post("/v1/sessions/s/end")).status_code == 200

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_stream_keeps_its_connection_alive_and_tells_a_late_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retcon.serve.app.PATIENCE", 0.05)

    class Late(Holding):
        async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
            await super().generate(request_id, ids, params)
            raise ConnectionError("gone")

    async def main() -> None:
        engine = Late()
        async with serving(context_of(engine)) as url, httpx.AsyncClient(base_url=url) as http:
            async with http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer:
                assert answer.status_code == 200
                lines = answer.aiter_lines()
                assert await anext(lines) == ": working"
                engine.go.set()
                rest = [line async for line in lines if line.startswith("data: ")]
            assert '"code":"unavailable"' in rest[0]
            assert len(rest) == 1

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_token_is_asked_for() -> None:
    async def play(client: Asking) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = await client.http.post("/v1/chat/completions", json=body(), headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert (await client.http.get("/v1/sessions", headers=headers)).status_code == 401
        assert (await client.http.get("/health")).status_code == 200
        right = {"Authorization": "Bearer secret"}
        assert (await client.http.post("/v1/chat/completions", json=body(), headers=right)).status_code == 200

    asked(play, ["Yes."], token="secret")


def test_a_page_in_a_browser_is_refused_by_a_server_without_a_token() -> None:
    async def play(client: Asking) -> None:
        answer = await client.http.post("/v1/chat/completions", json=body(), headers={"Origin": "http://x"})
        assert answer.status_code == 403

    asked(play, ["Yes."])


@pytest.mark.parametrize("bound", [{"answer_tokens": 0}, {"session_tokens": -1}, {"sessions": 0}, {"token": "é"}])
def test_bounds_that_are_none_are_refused_by_flag(bound: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="token" if "token" in bound else next(iter(bound)).replace("_", "-")):
        ServeSettings("small", **bound)
