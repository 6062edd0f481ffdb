"""What cells can do with functions of the host, in every tier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from test_sandbox_contract import pytestmark  # noqa: F401

from retcon.sandbox.jail.session.functions import ENDED, HEADER, MAX_BYTES, MAX_OPEN, HostChannel
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.pool.session import RunningCells
from retcon.sandbox.types import Limits, Program, Result, Sandbox, SessionBounds, check_functions
from sandboxes import SANDBOXES, Opened

tiers = pytest.mark.parametrize("opened", [name for name in SANDBOXES if name != "http"], indirect=True)


def cells(
    opened: Opened, *codes: str, limits: Limits | None = None, **functions: Callable[..., object]
) -> list[Result]:
    async def main(sandbox: Sandbox) -> list[Result]:
        session = await sandbox.session(limits=limits, functions=functions)
        try:
            return [await session.run(code) for code in codes]
        finally:
            await session.close()

    return opened.run(main)


async def upper(text: str, *, times: int = 1) -> str:
    return text.upper() * times


async def refuse(what: object) -> None:
    raise ValueError(f"not {what}")


@tiers
def test_a_cell_gets_what_a_function_returns(opened: Opened) -> None:
    values = cells(opened, "upper('a', times=3)", "x = upper('b')", "x, upper('é' * 100_000)[-1]", upper=upper)
    assert [v.value for v in values] == ["'AAA'", None, "('B', 'É')"]


@tiers
def test_what_goes_wrong_in_a_call_is_an_exception_of_the_cell(opened: Opened) -> None:
    codes = ["refuse('this')", "upper({1})", "upper()", "upper('x' * 17_000_000)", "refuse.__name__"]
    failed = cells(opened, *codes, upper=upper, refuse=refuse)
    assert [(r.status, r.error_type) for r in failed] == [
        ("error", "RuntimeError"), ("error", "TypeError"), ("error", "RuntimeError"), ("error", "ValueError"),
        ("ok", None),
    ]  # fmt: skip
    assert failed[0].stderr.splitlines()[-1] == "RuntimeError: refuse(): ValueError: not this"
    assert failed[0].stderr.count("File") == 2  # the cell's line and the function's, nothing of ours


@tiers
def test_calls_of_several_threads_run_at_the_same_time(opened: Opened) -> None:
    waiting = asyncio.Barrier(8)

    async def meet(number: int) -> int:
        await waiting.wait()
        return number

    code = "from concurrent.futures import ThreadPoolExecutor\nx = list(ThreadPoolExecutor(8).map(meet, range(8)))\nx"
    assert cells(opened, code, meet=meet)[0].value == str(list(range(8)))


@tiers
def test_the_wall_clock_stands_still_while_a_call_is_open(opened: Opened) -> None:
    async def slow() -> str:
        await asyncio.sleep(1)
        return "late"

    late, endless = cells(opened, "slow()", "slow()\nwhile True: pass", limits=Limits(wall_seconds=0.4), slow=slow)
    assert (late.status, late.value) == ("ok", "'late'")
    assert late.seconds < 0.4
    assert endless.status == "timeout"


@tiers
def test_a_call_that_is_open_when_its_cell_ends_is_cancelled(opened: Opened) -> None:
    cancelled = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    start = (
        "import threading\nended = []\n"
        "def call():\n    try: never()\n    except RuntimeError as error: ended.append(str(error))\n"
        "thread = threading.Thread(target=call)\nthread.start()\nmark()"
    )
    marked = asyncio.Event()

    async def mark() -> None:
        marked.set()

    second = cells(opened, start, "thread.join(5)\nended", never=never, mark=mark)[1]
    assert second.value == "['never(): the cell ended before the call returned']"
    assert cancelled == [True]


@tiers
def test_a_rollback_keeps_the_functions(opened: Opened) -> None:
    async def main(sandbox: Sandbox) -> list[str | None]:
        session = await sandbox.session(functions={"upper": upper})
        await session.run("x = upper('a')")
        name = await session.checkpoint()
        await session.run("x = upper('b')")
        await session.rollback(name)
        values = [(await session.run(code)).value for code in ("x", "upper('c')")]
        await session.close()
        return values

    assert opened.run(main) == ["'A'", "'C'"]


@tiers
def test_a_process_that_a_cell_starts_cannot_call(opened: Opened) -> None:
    code = (
        "import os\nread, write = os.pipe()\n"
        "if os.fork() == 0:\n    try: upper('a')\n"
        "    except RuntimeError as error: os.write(write, str(error).encode())\n"
        "    os._exit(0)\nos.wait()\nos.read(read, 1000).decode(), upper('b')"
    )
    assert "interpreter's own process" in str(cells(opened, code, upper=upper)[0].value)


@tiers
def test_bytes_in_the_channel_that_are_no_call_end_the_calls_alone(opened: Opened) -> None:
    results = cells(opened, "import os\nos.write(4, b'\\xff' * 64)\nupper('a')", "1 + 1", upper=upper)
    assert [(r.status, r.error_type, r.value) for r in results] == [("error", "RuntimeError", None), ("ok", None, "2")]


@pytest.mark.parametrize("opened", ["http"], indirect=True)
def test_a_sandbox_elsewhere_refuses_functions(opened: Opened) -> None:
    with pytest.raises(ValueError, match="elsewhere"):
        cells(opened, "upper('a')", upper=upper)


@pytest.mark.parametrize("name", ["a-b", "class", ""])
def test_a_function_needs_a_name_that_python_takes(name: str) -> None:
    with pytest.raises(ValueError, match="functions"):
        check_functions({name: upper})


def frame(number: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), number) + body


@pytest.fixture
def channel() -> Iterator[HostChannel]:
    made = HostChannel()
    yield made
    made.theirs.close()
    made.close()


def test_the_keeper_reads_no_more_calls_than_may_be_open(channel: HostChannel) -> None:
    channel.theirs.sendall(b"".join(frame(n, b"[]") for n in range(MAX_OPEN + 5)))
    assert [call.number for call in channel.receive()] == list(range(MAX_OPEN))
    assert not channel.reads
    channel.answer(0, "{}")
    channel.answer(0, "{}")  # answered: dropped
    channel.answer(999, "{}")  # never asked
    assert [call.number for call in channel.parsed()] == [MAX_OPEN]
    channel.end_cell()
    channel.send()
    answered = channel.theirs.recv(1 << 20)
    assert answered.startswith(frame(0, b"{}"))
    assert answered.count(ENDED.encode()) == MAX_OPEN


def test_a_call_above_the_size_that_is_allowed_closes_the_channel(channel: HostChannel) -> None:
    channel.theirs.sendall(HEADER.pack(MAX_BYTES + 1, 1))
    assert channel.receive() == []
    assert not channel.reads
    assert channel.theirs.recv(1) == b""


@tiers
def test_an_opening_runs_before_the_first_cell_and_one_that_fails_is_a_fault(opened: Opened) -> None:
    async def main(sandbox: Sandbox) -> list[Result]:
        found = []
        for code in ("word = open('a.txt').read()", "1 / 0"):
            session = await sandbox.session(opening=Program(code, files={"a.txt": b"tea"}))
            await session.checkpoint()
            found.append(await session.run("word"))
            await session.close()
        return found

    right, wrong = opened.run(main)
    assert (right.value, right.status, wrong.status) == ("'tea'", "ok", "infrastructure")
    assert "the session cannot be opened: " in wrong.stderr
    assert "ZeroDivisionError: division by zero" in wrong.stderr


def test_sessions_whose_cells_call_functions_follow_one_another_in_few_workers() -> None:
    """A cell that goes on comes before those that begin, or each would have a worker of its own."""
    workers = set()

    async def main() -> None:
        async with SandboxPool(2, sessions=SessionBounds(16)) as pool:

            async def one() -> None:
                session = await pool.session(functions={"upper": upper}, opening=Program("text = 'a'"))
                assert (await session.run("upper(text)")).value == "'A'"
                workers.add(session.worker)
                await session.close()

            await asyncio.gather(*(one() for _ in range(16)))
            assert pool.open_sessions == 0

    asyncio.run(main())
    assert len(workers) <= 8


def test_a_cancelled_cell_gives_its_turn_to_the_next() -> None:
    async def main() -> None:
        running = RunningCells(1)
        await running.acquire()
        begins, goes_on, last = (asyncio.ensure_future(running.acquire(going_on=n == 1)) for n in range(3))
        await asyncio.sleep(0)
        running.release()  # to the one that goes on, which is cancelled before it wakes
        goes_on.cancel()
        await begins
        assert not last.done()
        last.cancel()
        await asyncio.wait([goes_on, last])
        running.release()
        await asyncio.wait_for(running.acquire(), 1)

    asyncio.run(main())
