from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from playing import call, play, run_python
from retcon.core.errors import InfrastructureFault, SandboxUnavailable, SessionLost
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.purify.saar import Saar
from retcon.sandbox.types import Limits, Result
from retcon.tools.faults import TRANSIENT_ERRORS, FaultSetup, FaultyTool
from retcon.tools.forks import ForkableTool
from retcon.tools.kinds.python import RESTARTED, Python, PythonSession, PythonSessions, PythonTool
from retcon.tools.loading import ToolSetup
from retcon.tools.scripted import ScriptedSessions, ScriptedTool
from retcon.tools.types import OpenTool, StatefulTool, Tool

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
def test_a_fault_of_the_sandbox_is_reported_and_not_raised(fault: Exception) -> None:
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


# The Python tool with a memory over a sandbox that writes down what it is asked: seeds, limits, and what it closes.


LIMITS = Limits(memory_mb=64)


class Session:
    """One whose interpreter ends with the cell `exit`, and says what it was asked in its value."""

    def __init__(self, limits: Limits | None, seed: int | None) -> None:
        self.limits, self.seed, self.open, self.ended = limits, seed, True, False
        self.kept = 0

    async def run(self, code: str) -> Result:
        self._check()
        self.ended = code == "exit"
        if code in ("exit", "fail"):
            return Result("error", "SystemExit", stdout="out\n", stderr="SystemExit: 1\n")
        return Result("ok", value=code)

    async def checkpoint(self) -> str:
        self._check()
        self.kept += 1
        return f"c{self.kept}"

    async def rollback(self, checkpoint: str) -> None:
        self.ended = False

    async def discard(self, checkpoint: str) -> None:
        self.kept -= 1

    async def close(self) -> None:
        self.open = False

    def _check(self) -> None:
        if self.ended:
            raise SessionLost("its code ended it", by_own_code=True)


class Sandbox:
    def __init__(self) -> None:
        self.sessions: list[Session] = []

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> Session:
        self.sessions.append(Session(limits, seed))
        return self.sessions[-1]


def opened(work: Callable[[OpenTool], Awaitable[None]], *, trajectory: str = "t/0", chars: int = 2000) -> list[Session]:
    """The sessions that were opened while a trajectory's tool was worked with."""
    sandbox = Sandbox()

    async def run() -> None:
        tools = PythonSessions(sandbox, limits=LIMITS, output_chars=chars)  # type: ignore[arg-type]
        await work(await tools.open(trajectory))

    asyncio.run(run())
    return sandbox.sessions


async def say(tool: OpenTool, code: str) -> Observation:
    return await tool(ToolCall("c", "python", {"code": code}, 0))


async def ends_twice(tool: OpenTool) -> None:
    for code in ("exit", "exit", "1"):
        await say(tool, code)


def test_random_numbers_follow_from_the_trajectory_and_are_others_in_a_fresh_interpreter() -> None:
    first, again, other = (opened(ends_twice, trajectory=name) for name in ("t/0", "t/0", "t/1"))
    seeds = [session.seed for session in first]
    assert seeds[0] == derive("python", "t/0")
    assert seeds == [session.seed for session in again]
    assert len({*seeds, *(session.seed for session in other)}) == 6


def test_a_restart_that_was_rolled_back_leaves_no_trace_in_later_random_numbers() -> None:
    """What a lookahead tried is no part of the history."""

    async def tried(tool: OpenTool) -> None:
        before = await tool.checkpoint()
        await say(tool, "exit")
        await say(tool, "1")
        await tool.rollback(before)
        await ends_twice(tool)

    assert [session.seed for session in opened(tried)][2:] == [session.seed for session in opened(ends_twice)][1:]


def test_random_numbers_of_a_branch_do_not_depend_on_which_branch_is_quicker() -> None:
    def seeds(first: str, second: str) -> set[tuple[str, int | None]]:
        async def run() -> set[tuple[str, int | None]]:
            sandbox = Sandbox()
            tools = ForkableTool(PythonSessions(sandbox))  # type: ignore[arg-type]
            branches = {"t/0": await tools.open("t/0")}
            await tools.fork("t/0", "t/1")
            branches["t/1"] = await tools.open("t/1")
            found = set()
            for name in (first, second):
                await say(branches[name], "exit")
                await say(branches[name], "1")
                found.add((name, sandbox.sessions[-1].seed))
            return found

        return asyncio.run(run())

    assert seeds("t/0", "t/1") == seeds("t/1", "t/0")


def test_an_interpreter_that_was_restarted_has_the_limits_of_the_first() -> None:
    assert [session.limits for session in opened(ends_twice)] == [LIMITS] * 3


def test_of_the_interpreters_that_ended_none_stays_open() -> None:
    async def work(tool: OpenTool) -> None:
        await ends_twice(tool)
        await tool.close()

    assert [session.open for session in opened(work)] == [False] * 3


def test_that_the_interpreter_was_restarted_is_reported_above_a_failure_too() -> None:
    """Once, and not to a call that ran nothing."""

    async def work(tool: OpenTool) -> None:
        await say(tool, "exit")
        assert (await tool(ToolCall("c", "python", "print(", 0))).status == "malformed"
        said.extend([(await say(tool, code)).text for code in ("fail", "fail")])

    said: list[str] = []
    opened(work)
    assert said == [f"{RESTARTED}\nout\nSystemExit: 1", "out\nSystemExit: 1"]


def test_an_interpreter_that_a_rollback_leaves_behind_is_closed() -> None:
    async def work(tool: OpenTool) -> None:
        state = await tool.checkpoint()
        await say(tool, "exit")
        assert (await say(tool, "1")).text == f"{RESTARTED}\n1"
        await tool.rollback(state)
        assert (await say(tool, "2")).text == "2", "there nothing was restarted"

    assert [session.open for session in opened(work)] == [True, False]


@pytest.mark.parametrize("sessions", [False, True])
def test_the_model_is_told_whether_variables_stay(sessions: bool) -> None:
    setup = ToolSetup(Sandbox(), output_chars=99, sessions=sessions)  # type: ignore[arg-type]
    tool = Python().build(setup)
    kept = "Variables and files are kept between calls." in tool.spec.description
    assert kept is sessions is isinstance(tool, StatefulTool)
    assert ("Every call runs in a fresh interpreter." in tool.spec.description) is not sessions
    assert Python().spec(sessions=sessions) == tool.spec
    if isinstance(tool, StatefulTool):
        opened = asyncio.run(tool.open("t"))
        assert isinstance(opened, PythonSession)
        assert opened.spec == tool.spec


# The scripted tools, against which users test too: a script that does not fit is told, and no test passes by it.


def cell(code: str) -> ToolCall:
    return ToolCall("c", "python", {"code": code}, 0)


def test_code_that_a_script_lacks_is_the_scripts_mistake() -> None:
    tool = ScriptedTool({"print(1)": ("1", "ok", None)})
    assert asyncio.run(tool(cell("print(1)"))) == Observation("c", "1", "ok")
    with pytest.raises(KeyError, match=r"no answer to 'print\(2\)' \(did you mean 'print\(1\)'"):
        asyncio.run(tool(cell("print(2)")))
    assert tool.executed == ["print(1)", "print(2)"]


def test_a_state_that_is_kept_does_not_change_with_what_runs_afterwards() -> None:
    async def work() -> None:
        session = await ScriptedSessions(run_python).open("t")
        await session(cell("rows = [1]"))
        state = await session.checkpoint()
        for _ in range(2):
            await session(cell("rows.append(2)"))
            assert session.state == {"rows": [1, 2]}
            await session.rollback(state)
            assert session.state == {"rows": [1]}

    asyncio.run(work())


def test_one_cannot_go_back_to_what_is_not_kept() -> None:
    async def work() -> None:
        session = await ScriptedSessions(run_python).open("t")
        state = await session.checkpoint()
        await session.discard(state)
        with pytest.raises(InfrastructureFault, match=f"no checkpoint '{state}'"):
            await session.rollback(state)

    asyncio.run(work())


def test_a_script_without_an_answer_ends_the_rollout_that_asks_for_it() -> None:
    with pytest.raises(KeyError, match="no answer to 'x"):
        play([call("x")], tool=ScriptedTool({"y": ("", "ok", None)}))


# Calls that fail as those of a tool whose service has a hiccup.


def asked(
    tool: Tool | StatefulTool,
    rate: float,
    *,
    calls: int = 400,
    seed: int = 0,
    chars: int = 200,
    trajectory: str = "t/0",
    order: int = 1,
) -> dict[str, Observation]:
    """What `calls` calls of one trajectory are told, by the call's id, asked in some order."""

    async def run() -> dict[str, Observation]:
        opened = await FaultyTool(tool, FaultSetup(rate, seed, chars)).open(trajectory)
        ids = [f"{n}.0.0" for n in range(calls)][::order]
        return {id: await opened(ToolCall(id, "python", {"code": "x"}, char=0)) for id in ids}

    return asyncio.run(run())


def answering() -> ScriptedTool:
    return ScriptedTool(lambda code: ("fine", "ok", None))


def test_a_share_of_the_calls_fails_visibly_and_never_reaches_the_tool() -> None:
    tool = answering()
    told = asked(tool, 0.25)
    failed = [one for one in told.values() if one.status != "ok"]
    assert 70 < len(failed) < 130  # 100 ± 3.5 standard deviations
    assert {one.status for one in failed} == {"error"}  # no infrastructure fault, for which the rollout would go
    assert {(one.error_type, one.text) for one in failed} == {
        (kind, f"{kind}: {said}") for kind, said in TRANSIENT_ERRORS
    }
    assert len(tool.executed) == 400 - len(failed)


def test_which_calls_fail_depends_on_seed_trajectory_and_call_alone() -> None:
    def failing(**changes: object) -> set[str]:
        told = asked(answering(), 0.25, **changes)  # type: ignore[arg-type]
        return {id for id, one in told.items() if one.status != "ok"}

    assert failing() == failing(order=-1)
    assert failing() != failing(seed=1)
    assert failing() != failing(trajectory="t/1")


@pytest.mark.parametrize(("rate", "status"), [(0.0, {"ok"}), (1.0, {"error"})])
def test_none_or_all(rate: float, status: set[str]) -> None:
    assert {one.status for one in asked(answering(), rate, calls=50).values()} == status


def test_a_small_budget_is_kept() -> None:
    texts = {one.text for one in asked(answering(), 1.0, calls=50, chars=24).values()}
    assert texts == {f"{kind}: {said}"[:24] for kind, said in TRANSIENT_ERRORS}


def test_a_tool_with_state_is_still_opened_checkpointed_and_closed() -> None:
    tool = ScriptedSessions(lambda code, state: (str(state.setdefault(code, 1)), "ok", None))

    async def run() -> None:
        opened = await FaultyTool(tool, FaultSetup(0.0, 0, 200)).open("t/0")
        name = await opened.checkpoint()
        await opened(ToolCall("0", "python", {"code": "x"}, char=0))
        await opened.rollback(name)
        await opened.discard(name)
        await opened.close()

    asyncio.run(run())
    assert tool.opened[0].events == ["checkpoint 1", "run x", "rollback 1", "discard 1", "close"]
    assert tool.opened[0].trajectory == "t/0"


def test_a_rollout_sees_the_fault_and_a_repair_takes_it_for_a_failure() -> None:
    """All calls fail, so that nothing is repaired; the rollout goes on to its answer."""
    faulty = FaultyTool(answering(), FaultSetup(1.0, 0, 200))
    made = play([call("x"), call("x"), "42"], tool=faulty, repair=Saar(attempts=1)).trajectory  # type: ignore[arg-type]
    assert made.raw_failures == 2
    assert made.stop == "answer"
    assert "did not answer in time" in made.text or "was reset" in made.text
