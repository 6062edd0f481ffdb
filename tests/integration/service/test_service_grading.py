"""Grading behind a server that takes no program as long as that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from retcon.core.types import Trajectory
from retcon.http.server import listen, run_in_loop
from retcon.sandbox.client import SandboxClient
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.calls import Settings
from retcon.tasks.grading.grading import Grading
from retcon.tasks.grading.registry import Fault, Outcome, Reply
from retcon.tasks.types import Task

T = TypeVar("T")
LONG = "#" * 5000
RIGHT = "def f(n): return n + 1\nif __name__ == '__main__': print(f(int(input())))\n"
CHECKS = {"tests": ["assert f(1) == 2"]}
KINDS: list[dict[str, Any]] = [
    CHECKS,
    {"input_output": {"inputs": ["1\n"], "outputs": ["2\n"]}},
    {"input_output": {"inputs": [[1]], "outputs": [2], "fn_name": "f"}},
]


def behind_a_server(work: Callable[[SandboxClient], Awaitable[T]], max_code: int = 4000) -> T:
    async def main() -> T:
        async with SandboxPool(workers=1) as pool:
            app = create_app(pool, pool.tier, Settings(workers=1, max_code=max_code))
            async with run_in_loop(app, listen("127.0.0.1", 0)) as url, SandboxClient(url) as client:
                return await work(client)

    return asyncio.run(main())


def outcomes(asked: list[tuple[str, dict[str, Any]]], max_code: int = 4000) -> list[Outcome]:
    """What is said of each program with its tests."""

    async def work(client: SandboxClient) -> list[Outcome]:
        async with Grading(sandbox=client) as grading:
            return [
                await grading.outcome(
                    Task("t", "…", "a", meta={"grader": "code", **meta}),
                    Reply(f"```python\n{program}\n```", Trajectory("t", "t", (), (), stop="answer")),
                )
                for program, meta in asked
            ]

    return behind_a_server(work, max_code)


def test_an_answer_that_is_too_long_is_wrong_and_says_so_whatever_tests_it() -> None:
    asked = [(RIGHT + LONG, meta) for meta in KINDS]
    asked.append((f"{RIGHT}# {'字' * 1100}", KINDS[2]))  # far below the limit, but it is called by way of its bytes
    for said in outcomes(asked):
        assert not isinstance(said, Fault), said
        assert (said.right, said.score) == (False, 0.0)
        assert "ProgramTooLong: a program of " in said.why
        assert said.why.endswith("characters: this server takes 4000 at most")
    raises = "class ProgramTooLong(Exception): pass\ndef f(n): raise ProgramTooLong"
    right, error = outcomes([(RIGHT, CHECKS), (raises, CHECKS)])
    assert (right.why, error.why) == ("passed", "test 1: ProgramTooLong")


@pytest.mark.parametrize(
    ("meta", "max_code", "more"), [(KINDS[1], 900, 250), (KINDS[2], 1300, 400)], ids=["run", "call"]
)
def test_an_answer_is_too_long_by_itself_however_much_is_put_around_it(
    meta: dict[str, Any], max_code: int, more: int
) -> None:
    """Else it could be padded until it is left out of its group, in place of being wrong."""
    right, long = outcomes([(RIGHT, meta), (f"{RIGHT}{'#' * more}", meta)], max_code)
    assert not isinstance(right, Fault)
    assert not isinstance(long, Fault), long
    assert (right.right, long.right) == (True, False)
    assert long.why.startswith("case 1: ProgramTooLong: ")
