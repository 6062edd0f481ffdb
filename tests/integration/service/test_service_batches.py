"""A call of a batch, or a notebook's cell, that cannot be run, or fails before it could: the others' results stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Unpack

import httpx
import msgspec
import pytest

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.sandbox.jail.confine.root import SIZE_MB
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.calls import Settings
from retcon.sandbox.types import Program, ProgramOptions, Result, as_program
from servers.serving import MemorySandbox
from servers.vanishing import Asking, asking

FAULTS = {"busy": SandboxBusy("no worker was free"), "gone": SandboxUnavailable("closed"), "wrong": ValueError("wrong")}
TOO_MUCH = "x" * ((SIZE_MB << 20) + 1)


class Refusing(MemorySandbox):
    """Does not run programs that are named like a fault."""

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        fault = FAULTS.get(as_program(program, options).code)
        if fault is None:
            return await super().run(program, **options)
        await asyncio.sleep(0)  # the others have begun
        raise fault


def post(path: str, body: dict[str, Any]) -> httpx.Response:
    async def main() -> httpx.Response:
        app = create_app(Refusing(), "rlimits", Settings(max_body=3 * len(TOO_MUCH)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sandbox") as http:
            return await http.post(path, json=body)

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_batch_each_call_has_a_result_of_its_own(stream: bool) -> None:
    codes = ["print(0)", "busy", "a\0b", "gone", "print(4)", "#" * 2_097_153]
    answer = post("/v1/batch", {"calls": [{"code": code} for code in codes], "stream": stream})
    assert answer.status_code == 200, answer.text
    if stream:
        told = sorted(map(json.loads, answer.text.splitlines()), key=lambda line: line["index"])
        assert [line.get("error", {}).get("type") for line in told] == [None, "busy", None, "unavailable", None, None]
        found = {line["index"]: msgspec.convert(line["result"], Result) for line in told if "result" in line}
    else:
        found = dict(enumerate(msgspec.convert(answer.json()["results"], list[Result])))
        assert (found[1].status, found[1].stderr) == ("infrastructure", "no worker was free")
        assert (found[3].status, found[3].stderr) == ("infrastructure", "closed")
    assert (found[0].stdout, found[4].stdout) == ("0\n", "4\n")
    assert (found[2].status, found[2].error_type, found[2].exit_code) == ("error", "SyntaxError", 1)
    assert "null bytes" in found[2].stderr
    assert (found[5].status, found[5].error_type, found[5].exit_code) == ("limit", "ProgramTooLong", None)
    said = "ProgramTooLong: a program of 2097153 characters: this server takes 2097152 at most\n"
    assert found[5].stderr == said


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"code": "wrong"}, "calls[1]"),
        ({"code": "1", "stdin": TOO_MUCH}, "calls[1]"),
        ({"code": "a\0b", "tiemout": 1}, "calls[1].tiemout"),
        ({"code": "1", "timeout": 1e9}, "calls[1].timeout"),
    ],
    ids=["the sandbox's word", "room", "unknown", "above"],
)
def test_a_mistake_of_the_caller_refuses_the_batch_by_its_place(call: dict[str, Any], field: str) -> None:
    answer = post("/v1/batch", {"calls": [{"code": "print(0)"}, call]})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


RUN, JUDGED = {"code": "print(0)"}, {"type": "python", "solution": "print(0)"}


@pytest.mark.parametrize(
    ("path", "field", "call", "wrong"),
    [
        ("/v1/batch", "calls", RUN, {"code": ""}),
        ("/run/batch", "submissions", JUDGED, {"type": "java", "solution": ""}),
        ("/judge/long-batch", "submissions", JUDGED, {"type": "java", "solution": ""}),
    ],
)
def test_more_calls_than_a_batch_may_have_are_refused_before_one_is_looked_at(
    path: str, field: str, call: dict[str, str], wrong: dict[str, str]
) -> None:
    async def work(client: Asking) -> None:
        assert (await client.post(path, {field: [call] * 3})).status_code == 200
        refused = await client.post(path, {field: [wrong] * 4})
        assert (refused.status_code, client.sandbox.begun) == (422, 3)
        assert field in refused.text
        assert "4 calls in one batch: this server takes 3 at most" in refused.text

    asking(work, max_calls=3)


def test_of_a_batch_of_code_judges_each_submission_is_judged_by_itself() -> None:
    sent = [{"type": "python", "solution": code} for code in ("print(0)", "busy", "gone", "wrong", "print(1)")]
    answer = post("/run/batch", {"type": "batch", "submissions": sent})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["reason"] for result in results] == ["", "queue_timeout", "internal_error", "invalid_input", ""]
    assert [result["stdout"] for result in results] == ["0\n", None, None, None, "1\n"]
    assert [results[index]["stderr"] for index in (2, 3)] == ["closed", "wrong"]


def test_a_notebook_that_has_begun_waits_for_room() -> None:
    async def work(client: Asking) -> None:
        async def until(begun: int, queued: int) -> None:
            while client.sandbox.begun < begun:
                await asyncio.sleep(0)
            while f"retcon_sandbox_queue_length {queued}" not in (await client.http.get("/metrics")).text:
                assert not notebook.done(), notebook.result().text

        client.sandbox.wait = first = asyncio.Event()
        notebook = asyncio.create_task(client.post("/run_jupyter", {"cells": ["print(1)", "print(2)"]}))
        await until(begun=1, queued=0)
        client.sandbox.wait = rest = asyncio.Event()
        batch = asyncio.create_task(client.post("/v1/batch", {"calls": [{"code": "1"}] * 2}))
        await until(begun=2, queued=2)
        first.set()  # its place goes to the batch's second call
        await until(begun=3, queued=2)
        refused = await client.post("/run_jupyter", {"cells": ["print(1)"]})
        assert refused.status_code == 504, "one that has not begun does not wait"
        rest.set()
        answer = await notebook
        assert answer.status_code == 200, answer.text
        assert [cell["stdout"] for cell in answer.json()["cells"]] == ["1\n", "2\n"]
        assert (await batch).status_code == 200
        assert client.sandbox.open_sessions == 0

    asking(work, workers=1, queue=1)
