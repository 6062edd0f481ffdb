from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retcon.core.errors import InfrastructureFault, SandboxUnavailable
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Result
from retcon.tools.kinds.python import PythonSessions, PythonTool

ERROR = Result(
    "error",
    "NameError",
    stdout="before\n",
    stderr='Traceback (most recent call last):\n  File "<python>", line 1, in <module>\n'
    "NameError: name 'gcd' is not defined\n",
    seconds=0.5,
)


class Answers:
    """A sandbox that always answers the same, and keeps what it was asked."""

    def __init__(self, answer: Result | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.seeds: list[object] = []

    async def run(self, code: str, **options: object) -> Result:
        self.asked.append(code)
        self.seeds.append(options["seed"])
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        return


def observe(answer: Result | Exception, *, output_chars: int = 2000) -> Observation:
    tool = PythonTool(Answers(answer), output_chars=output_chars)
    return asyncio.run(tool(ToolCall("c1", "python", {"code": "1"}, 0)))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result("ok", stdout="2\n"), "2"),
        (Result("ok", value="3"), "3"),
        (Result("ok", stdout="2\n", value="3"), "2\n3"),
        (Result("ok", stdout="2", value="3"), "2\n3"),
        (Result("ok"), ""),
    ],
)
def test_a_success_shows_what_was_printed_then_the_value(result: Result, text: str) -> None:
    assert observe(result) == Observation("c1", text, "ok")


def test_an_address_is_shown_as_one_and_other_hexadecimal_numbers_as_they_are() -> None:
    said = "<map object at 0x7f51411e20c0> [<A.f at 0x55d0c1>] 0xdeadbeef at 0x7f51411e20c0, <b at 0x7f"
    shown = "<map object at 0x...> [<A.f at 0x...>] 0xdeadbeef at 0x7f51411e20c0, <b at 0x7f"
    assert observe(Result("ok", stdout=said)).text == shown
    assert (
        observe(Result("ok", value="<map object at 0x7f51411e20c0>"), output_chars=24).text == "<map object at 0x...>"
    )
    unmet = Result("error", "TypeError", stderr="TypeError: bad <object object at 0x7f51411e20c0>\n")
    assert [observe(unmet, output_chars=chars).text for chars in (199, 200)] == [
        "TypeError: bad <object object at 0x...>"
    ] * 2


def test_random_numbers_follow_from_the_calls_id_and_code() -> None:
    sandbox = Answers(Result("ok"))
    tool = PythonTool(sandbox)
    for id, code in (("a", "1"), ("a", "1"), ("b", "1"), ("a", "2")):
        asyncio.run(tool(ToolCall(id, "python", {"code": code}, 0)))
    first, again, other_id, other_code = sandbox.seeds
    assert first == again
    assert len({first, other_id, other_code}) == 3


def test_a_failure_shows_what_was_printed_then_the_traceback() -> None:
    seen = observe(ERROR)
    assert (seen.status, seen.error_type, seen.seconds) == ("error", "NameError", 0.5)
    assert seen.text == (ERROR.stdout + ERROR.stderr).rstrip()


@pytest.mark.parametrize(
    ("chars", "text"), [(24, "NameError: name 'gcd' is"), (199, "NameError: name 'gcd' is not defined")]
)
def test_a_small_budget_shows_pythons_last_line_from_its_start(chars: int, text: str) -> None:
    assert observe(ERROR, output_chars=chars).text == text


@pytest.mark.parametrize(
    ("error_type", "stderr", "text"),
    [
        ("ValueError", "ValueError: one\ntwo\n", "ValueError: one"),
        ("JSONDecodeError", "json.decoder.JSONDecodeError: bad\n", "json.decoder.JSONDecodeError: bad"),
        ("E", "odd\n", "odd"),
        ("SIGKILL", "", "SIGKILL"),
    ],
)
def test_the_last_line_is_the_one_that_names_the_error(error_type: str, stderr: str, text: str) -> None:
    assert observe(Result("error", error_type, stderr=stderr), output_chars=100).text == text


def test_a_large_budget_cuts_the_middle_and_says_so() -> None:
    text = observe(Result("ok", stdout="a" * 500 + "b" * 500), output_chars=200).text
    assert len(text) <= 200
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "characters cut]" in text
    assert observe(Result("ok", stdout="abc" * 50), output_chars=7).text == "abcabca"


@pytest.mark.parametrize("fault", [SandboxUnavailable("gone"), ConnectionResetError("gone"), ValueError("gone")])
def test_a_fault_of_the_sandbox_is_told_and_not_raised(fault: Exception) -> None:
    seen = observe(fault)
    assert (seen.status, seen.error_type, seen.text) == ("infrastructure", type(fault).__name__, "sandbox fault: gone")


@pytest.mark.parametrize("status", ["timeout", "limit", "infrastructure"])
def test_status_and_type_are_the_sandboxs(status: str) -> None:
    seen = observe(Result(status, "TimeoutError", stderr="TimeoutError: no end after 2 s\n"), output_chars=20)
    assert (seen.status, seen.error_type, seen.text) == (status, "TimeoutError", "TimeoutError: no end")


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="output_chars is 0"):
        PythonTool(Answers(Result("ok")), output_chars=0)


class Refuses:
    """A sandbox, and a session of it, whose server takes no request from the `after`-th on."""

    def __init__(self, fault: Exception, after: int) -> None:
        self.fault = fault
        self.left = after

    async def session(self, **_: object) -> Refuses:
        return await self._asked(self)

    async def run(self, *_: object) -> Result:
        return await self._asked(Result("ok"))

    async def checkpoint(self) -> str:
        return await self._asked("state")

    async def rollback(self, _: str) -> None:
        await self._asked(None)

    async def _asked(self, answer: Any) -> Any:
        if not self.left:
            raise self.fault
        self.left -= 1
        return answer


@pytest.mark.parametrize("fault", [ValueError("30 s: 20 s at most"), SandboxUnavailable("broken")])
def test_whatever_a_server_refuses_of_a_session_is_a_fault_of_ours(fault: Exception) -> None:
    async def work() -> None:
        with pytest.raises(InfrastructureFault, match=f"no interpreter for trajectory t: {fault}"):
            await PythonSessions(Refuses(fault, 0)).open("t")
        tool = await PythonSessions(Refuses(fault, 1)).open("t")
        seen = await tool(ToolCall("c", "python", {"code": "1"}, 0))
        assert (seen.status, seen.text) == ("infrastructure", f"sandbox fault: {fault}")
        with pytest.raises(InfrastructureFault, match=f"no checkpoint: {fault}"):
            await tool.checkpoint()
        tool = await PythonSessions(Refuses(fault, 2)).open("t")
        state = await tool.checkpoint()
        with pytest.raises(InfrastructureFault, match=f"cannot go back to '{state}': {fault}"):
            await tool.rollback(state)

    asyncio.run(work())
