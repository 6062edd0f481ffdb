"""The client and the router against real servers that die, are busy or want a token."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from retcon.build import open_context, open_sandbox
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import InfrastructureFault, RecipeError, SandboxUnavailable, SessionLost
from retcon.core.types import ToolCall, Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.sandbox.client import SandboxClient, SandboxRouter
from retcon.sandbox.types import Limits
from retcon.tasks.graders.code import CodeGrader
from retcon.tasks.grading.registry import Reply
from retcon.tasks.types import Task
from retcon.tools.kinds.python import PythonTool
from servers import answering
from servers.serving import server


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    async def opened(made: Any) -> None:
        async with made:
            pass

    for made in (SandboxClient(url, tries=2), SandboxRouter([url], tries=2)):
        with pytest.raises(SandboxUnavailable, match=url):
            asyncio.run(opened(made))


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        SandboxClient(url)


def test_a_call_whose_server_dies_is_infrastructure_and_never_the_programs_error() -> None:
    async def work() -> None:
        with server("--workers", "1", "--timeout", "600") as made:
            async with SandboxClient(made.url, tries=2) as client:
                call = asyncio.create_task(client.run("while True: pass"))
                await client.probe()
                made.stop(signal.SIGKILL)
                result = await call
                assert (result.status, result.error_type) == ("infrastructure", None)
                assert made.url in result.stderr
                assert (await client.run("1")).status == "infrastructure"

    asyncio.run(work())


def test_a_wrong_token_and_a_wrong_server_are_distinguished() -> None:
    async def work() -> None:
        with server("--workers", "1", "--token", "right") as made:
            with pytest.raises(SandboxUnavailable, match="another token"):
                await SandboxClient(made.url, token="wrong").start()
            async with SandboxClient(made.url, token="right") as client:
                assert (await client.run("print(1)")).stdout == "1\n"

        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry")
            await writer.drain()
            writer.close()

        stranger = await asyncio.start_server(other, "127.0.0.1", 0)
        async with stranger:
            url = f"http://127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
            with pytest.raises(SandboxUnavailable, match="is it a retcon sandbox server"):
                await SandboxClient(url).start()

    asyncio.run(work())


@pytest.mark.parametrize("page", ["<html>Welcome!</html>", "[]", {"status": "ok"}])
def test_a_server_of_something_else_is_reported_by_name_and_no_connection_stays(page: object) -> None:
    async def main(url: str) -> None:
        for sandbox in (SandboxClient(url), SandboxRouter([url])):
            with pytest.raises(SandboxUnavailable, match=rf"{url} is not a retcon sandbox server"):
                await sandbox.start()
            with pytest.raises(SandboxUnavailable, match="is not open"):
                await sandbox.run("1")

    with answering.serving(lambda _: answering.Answer(page)) as server:
        asyncio.run(main(server.url.removesuffix("/v1")))


@pytest.fixture
def breaking() -> Iterator[answering.Server]:
    """A server whose proxy, say, answers what is asked of it with a fault in its own words, and that is away then."""
    said = {"session": "s", "tier": "landlock"}

    def reply(asked: answering.Asked) -> answering.Answer:
        if asked.path in ("/v1/run", "/v1/sessions/s/run"):
            return answering.Answer("Internal Server Error", 500)
        away = any(one.path == "/v1/run" for one in made.asked)
        return answering.Answer("away", 503) if away else answering.Answer(said)

    with answering.serving(reply) as made:
        yield made


def test_a_fault_in_other_words_than_the_servers_is_asked_again_and_ends_as_infrastructure(
    breaking: answering.Server,
) -> None:
    async def main(url: str) -> None:
        async with SandboxClient(url, tries=2) as client:
            session = await client.session()
            for run in (session.run, client.run):
                answer = await run("print(1)")
                assert (answer.status, answer.stderr) == ("infrastructure", f"{url}: 500 Internal Server Error")
            with pytest.raises(SessionLost, match="500 Internal"):
                await session.checkpoint()

    asyncio.run(main(breaking.url.removesuffix("/v1")))
    runs = [one.path for one in breaking.asked if one.path.endswith("/run")]
    assert runs == ["/v1/sessions/s/run"] * 2 + ["/v1/run"] * 2


def test_what_a_server_cannot_free_or_close_ends_nothing_of_its_clients() -> None:
    said = {"session": "s", "tier": "landlock", "checkpoint": "c"}
    broken = {"error": {"type": "internal", "field": None, "message": "a fault of its own"}}

    async def main(url: str) -> None:
        async with SandboxClient(url, tries=1) as client:
            session = await client.session()
            await session.discard(await session.checkpoint())
            await session.close()
            with pytest.raises(SessionLost, match="it was closed"):
                await session.checkpoint()

    def reply(asked: answering.Asked) -> answering.Answer:
        if any(one.path.endswith("/checkpoints") for one in made.asked) and not asked.path.endswith("/checkpoints"):
            return answering.Answer(broken, 500)
        return answering.Answer(said)

    with answering.serving(reply) as made:
        asyncio.run(main(made.url.removesuffix("/v1")))


def test_a_busy_server_is_asked_again() -> None:
    async def work() -> None:
        with server("--workers", "1", "--queue", "1") as made:
            async with SandboxClient(made.url, tries=100) as client:
                results = await asyncio.gather(*(client.run(f"print({i})") for i in range(30)))
                assert [result.stdout for result in results] == [f"{i}\n" for i in range(30)]

    asyncio.run(work())


def test_limits_of_the_client_hold_where_a_call_gives_none() -> None:
    async def work() -> None:
        with server("--workers", "1", "--timeout", "600") as made:
            async with SandboxClient(made.url, limits=Limits(wall_seconds=0.2)) as client:
                late = await client.run("import time; time.sleep(600)")
                assert late.stderr == "TimeoutError: no end after 0.2 s\n"
                with pytest.raises(ValueError, match="above 0"):
                    await client.run("1", timeout=-1)
                with pytest.raises(ValueError, match=r"timeout: .* at most"):
                    await client.run("1", timeout=1e9)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("wall_seconds=30", "wall_seconds: 30 s: this server allows 20 s at most"),
        ("memory_mb=4096", "memory_mb: 4096 MiB: this server allows 2048 MiB at most"),
    ],
)
def test_limits_that_a_server_does_not_allow_are_refused_before_work_starts(asked: str, said: str) -> None:
    async def opened(urls: list[str], *limits: str) -> list[str]:
        recipe = load_recipe(None, [f"sandbox.url={json.dumps(urls)}", *(f"sandbox.{limit}" for limit in limits)])
        async with open_sandbox(recipe.sandbox) as router:
            assert isinstance(router, SandboxRouter)
            return router.up

    with server("--workers", "1", "--max-timeout", "20", "--max-memory", "2048") as made, server() as other:
        for urls in ([made.url], [other.url, made.url]):
            with pytest.raises(SandboxUnavailable, match=f"{made.url}.*{said}"):
                asyncio.run(opened(urls, "wall_seconds=20", asked))
        assert asyncio.run(opened([made.url], "wall_seconds=20")) == [made.url]


def test_a_server_that_does_not_know_a_limit_is_refused_by_name() -> None:
    def reply(asked: answering.Asked) -> answering.Answer:
        if "processes" in asked.body.get("limits", {}):
            refusal = {"type": "invalid", "field": "limits.processes", "message": "unknown field 'processes'"}
            return answering.Answer({"error": refusal}, 422)
        return answering.Answer({"tier": "landlock"})

    async def main(url: str) -> None:
        async with SandboxClient(url, limits=Limits(wall_seconds=7)):
            raise AssertionError

    with (
        answering.serving(reply) as made,
        pytest.raises(SandboxUnavailable, match=r"limits\.processes: unknown field .*: update it"),
    ):
        asyncio.run(main(made.url.removesuffix("/v1")))
    assert made.asked[-1].body["limits"]["wall_seconds"] == 7


@pytest.mark.parametrize(
    "meta", [{"tests": ["assert f(1) == 2"]}, {"input_output": {"inputs": ["1\n"], "outputs": ["2\n"]}}]
)
def test_grading_under_limits_that_a_server_does_not_allow_is_an_infrastructure_fault(meta: dict[str, Any]) -> None:
    """Of a sandbox of one's own: ValueError would say that the task's tests cannot be read."""
    task = Task("t", "…", "a", meta=meta)
    said = Reply("```python\nprint(2)\n```", Trajectory("t", "t", (), (), stop="answer"))

    async def main(url: str) -> None:
        async with SandboxClient(url) as client:
            grader = CodeGrader(client)
            try:
                with pytest.raises(InfrastructureFault, match=r"wall_seconds: 100 s: this server allows 20 s at most"):
                    await grader.grade(task, said)
            finally:
                await grader.close()

    with server("--workers", "1", "--max-timeout", "20") as made:
        asyncio.run(main(made.url))


@pytest.mark.parametrize(("status", "kind"), [(503, "busy"), (500, "internal")])
def test_a_server_that_is_busy_or_broken_just_then_is_there_all_the_same(status: int, kind: str) -> None:
    """Its limits are asked for by a call, which waits for no worker."""
    limits = Limits(wall_seconds=7)

    def reply(asked: answering.Asked) -> answering.Answer:
        refusal = {"error": {"type": kind, "field": None, "message": "not now"}}
        return answering.Answer(refusal, status) if asked.path == "/v1/run" else answering.Answer({"tier": "landlock"})

    async def main(url: str) -> None:
        async with SandboxClient(url, limits=limits) as client, SandboxRouter([url], limits=limits) as router:
            assert (client.tier, router.up) == ("landlock", [url])

    with answering.serving(reply) as made:
        asyncio.run(main(made.url.removesuffix("/v1")))
    assert [(one.path, one.body["wait"], one.body["limits"]["wall_seconds"]) for one in made.asked] == [
        ("/v1/run", 0, 7), ("/v1/run", 0, 7),
    ]  # fmt: skip


def test_a_killed_server_costs_no_call_and_comes_back_in() -> None:
    async def work() -> None:
        with server("--workers", "1") as one, server("--workers", "1") as two:
            async with SandboxRouter([one.url, two.url], connections=20) as router:
                assert sorted(router.up) == sorted([one.url, two.url])
                calls = [asyncio.create_task(router.run(f"print({i})")) for i in range(200)]
                await asyncio.wait(calls[:20], return_when=asyncio.FIRST_COMPLETED)
                one.stop(signal.SIGKILL)
                results = await asyncio.gather(*calls)
                assert [result.stdout for result in results] == [f"{i}\n" for i in range(200)]
                assert {result.status for result in results} == {"ok"}
                assert router.up == [two.url]
                with server("--workers", "1", port=one.port):
                    while one.url not in router.up:
                        assert (await router.run("print(1)")).stdout == "1\n"
                    two.stop(signal.SIGKILL)
                    assert (await router.run("print(2)")).stdout == "2\n"

    asyncio.run(work())


def test_all_servers_gone_is_infrastructure() -> None:
    async def work() -> None:
        with server("--workers", "1") as one:
            async with SandboxRouter([one.url], tries=2) as router:
                one.stop(signal.SIGKILL)
                result = await router.run("1")
                assert (result.status, one.url in result.stderr) == ("infrastructure", True)
                with pytest.raises(SandboxUnavailable, match="no session"):
                    await router.session()

    asyncio.run(work())


def test_sessions_stay_with_their_server_and_are_lost_with_it() -> None:
    async def work() -> None:
        with server("--workers", "1") as one, server("--workers", "1") as two:
            async with SandboxRouter([one.url, two.url], tries=2) as router:
                sessions = [await router.session() for _ in range(4)]
                for number, session in enumerate(sessions):
                    await session.run(f"x = {number}")
                assert [(await session.run("x")).value for session in sessions] == ["0", "1", "2", "3"]
                one.stop(signal.SIGKILL)
                lost = []
                for number, session in enumerate(sessions):
                    result = await session.run("x")
                    if result.status == "infrastructure":
                        lost.append(number)
                        with pytest.raises(SessionLost):
                            await session.run("x")
                    else:
                        assert result.value == str(number)
                assert len(lost) == 2  # the least loaded takes each: two to a server
                assert (await (await router.session()).run("print(1)")).stdout == "1\n"

    asyncio.run(work())


def test_rollouts_whose_sandbox_is_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETCON_SANDBOX_TOKEN", "t")

    async def work() -> None:
        with server("--workers", "1", "--token", "t") as one:
            recipe = load_recipe(None, [f"sandbox.url={one.url}", "sandbox.output_chars=2000", "sandbox.patience=0"])
            tokenizer = ByteTokenizer()
            async with open_context(recipe, ScriptedEngine(tokenizer, []), Chat(tokenizer)) as context:
                tool = context.tools["python"]
                assert isinstance(tool, PythonTool)
                said = await tool(ToolCall("c", "python", {"code": "print(6 * 7)"}, 0))
                assert (said.text, said.status) == ("42", "ok")
                one.stop(signal.SIGKILL)
                assert (await tool(ToolCall("c", "python", {"code": "1"}, 0))).status == "infrastructure"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("value", "urls"), [("http://a:1", ("http://a:1",)), ('["http://a", "https://b"]', ("http://a", "https://b"))]
)
def test_a_recipe_names_one_server_or_several(value: str, urls: tuple[str, ...]) -> None:
    assert load_recipe(None, [f"sandbox.url={value}"]).sandbox.url == urls


def test_a_recipe_with_no_url_of_a_server_is_refused() -> None:
    with pytest.raises(RecipeError, match="http://host:port"):
        load_recipe(None, ["sandbox.url=localhost"])
