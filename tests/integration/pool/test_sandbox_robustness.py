"""What must leave no caller waiting and nothing behind: an odd zygote, cancelling at any moment, the user's forks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.doctor import probe
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, SessionBounds

SOON = 60.0  # seconds: an end that takes longer never comes

# an interpreter that is none: it says that it is a zygote, and answers an order with what the pool does not expect
ODD = """#!{python}
import os, socket, sys
if "-P" not in sys.argv:  # the question for its version, before there is a zygote
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
channel = socket.socket(fileno=int(sys.argv[7]))
channel.send(b'["Imported", [[]]]')
while socket.recv_fds(channel, 65536, 1)[0]:
    socket.send_fds(channel, [b'{{}}'], [os.pidfd_open(os.getpid())])
"""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)


def descriptors() -> list[str]:
    """What each is, without the number that tells two pipes apart."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            found.append(str(path.readlink()).partition(":")[0])
    return sorted(found)


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since it was listed
            found.update((task / "children").read_text().split())
    return found


def test_an_answer_that_nobody_foresaw_leaves_no_one_waiting(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(ODD.format(python=sys.executable))
    python.chmod(0o755)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        async with asyncio.timeout(SOON):
            with pytest.raises(SandboxUnavailable, match="ValueError: not a message"):
                await SandboxPool(workers=1, python=str(python)).start()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_cancelling_at_any_moment_leaks_nothing(seed: int) -> None:
    draw = random.Random(seed)
    others, before = children(), descriptors()

    async def use(pool: SandboxPool, number: int) -> None:
        if number % 3:
            await pool.run(f"import {('math', 'random', 'json')[number % 3]}\nprint({number})")
            return
        session = await pool.session()
        try:
            await session.run("x = 1")
            name = await session.checkpoint()
            await session.rollback(name)
        finally:
            await session.close()

    async def main() -> None:
        async with SandboxPool(workers=2, sessions=SessionBounds(3), queue=4) as pool:
            tasks = []
            for number in range(40):
                tasks.append(asyncio.create_task(use(pool, number)))
                for _ in range(draw.randrange(12)):
                    await asyncio.sleep(draw.choice((0, 0, 0.0005, 0.003)))
                if draw.random() < 0.7:
                    draw.choice(tasks).cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            faults = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, asyncio.CancelledError)]
            assert not faults
            await until(lambda: not pool.fleet.running and not pool.fleet.waiting)
            assert (await asyncio.gather(*(pool.run(f"print({n})") for n in range(8))))[7].stdout == "7\n"
            for session in [await pool.session() for _ in range(3)]:  # every place came back
                assert (await session.run("1 + 1")).value == "2"
                await session.close()
            assert len(pool.fleet.workers) <= 2 + 3  # those of closed sessions serve later ones

    asyncio.run(main())
    assert children() <= others
    assert descriptors() == before


@pytest.mark.parametrize("seed", range(4))
def test_opening_can_be_cancelled_at_any_moment(seed: int) -> None:
    others, before = children(), descriptors()

    async def main() -> None:
        pool = SandboxPool(workers=1)
        opening = asyncio.create_task(pool.start())
        for _ in range(seed * 3):
            await asyncio.sleep(0.004 * seed)
        opening.cancel()
        try:
            await opening
        except asyncio.CancelledError:
            await until(lambda: not pool.fleet.is_open)
        await pool.close()

    asyncio.run(main())
    assert children() <= others
    assert descriptors() == before


@pytest.mark.parametrize("steps", range(6))
def test_closing_can_be_cancelled_at_any_moment(steps: int) -> None:
    """Nothing is left when it returns: a second call has nothing to do."""
    others, before = children(), descriptors()

    async def main() -> None:
        pool = SandboxPool(workers=2, warm=("stdlib",))
        await pool.start()
        await asyncio.gather(pool.run("1"), pool.run("import random"))
        folder = pool.fleet.folder
        closing = asyncio.create_task(pool.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        if not steps:  # it has not even begun
            await pool.close()
        assert not pool.fleet.is_open
        assert not folder.exists()
        assert children() <= others

    asyncio.run(main())
    assert descriptors() == before


def test_a_pool_that_is_closed_while_it_opens_leaves_nothing() -> None:
    others = children()

    async def main() -> None:
        pool = SandboxPool(workers=1)
        opening = asyncio.create_task(pool.start())
        await until(lambda: pool.fleet.is_open)
        await pool.close()
        with pytest.raises(SandboxUnavailable, match="not open"):
            await opening
        assert children() <= others

    asyncio.run(main())


def test_a_pool_in_another_event_loop_than_its_own_says_so_and_goes_on_in_that() -> None:
    async def used(pool: SandboxPool) -> str:
        return (await pool.run("print(1)")).stdout

    async def opened(pool: SandboxPool) -> None:
        await pool.session()

    async def main() -> None:
        async with SandboxPool(workers=1, limits=Limits(wall_seconds=SOON)) as pool:
            for use in (used, opened):
                with pytest.raises(SandboxUnavailable, match="started in another event loop"):
                    await asyncio.to_thread(lambda use=use: asyncio.run(use(pool)))
            assert await used(pool) == "1\n"

    asyncio.run(main())


def test_a_pool_serves_the_event_loop_that_it_is_started_in_anew() -> None:
    pool = SandboxPool(workers=1, limits=Limits(wall_seconds=SOON))

    async def main() -> str:
        async with pool:
            return (await pool.run("print(1)")).stdout

    assert [asyncio.run(main()) for _ in range(2)] == ["1\n", "1\n"]


LEAVE = """
import os, time
os.makedirs("a/b/c")
for name in ("file", "a/file", "a/b/c/file"):
    with open(name, "wb") as file:
        file.write(bytes(1 << 20))
os.symlink({kept!r}, "link")
os.symlink({folder!r}, "a/link")
os.chmod("a/b", 0)
open("written", "w").close()
"""


@pytest.mark.parametrize("tier", ["namespaces", "landlock", "rlimits"])
@pytest.mark.filterwarnings("ignore::retcon.core.errors.SandboxWarning")
def test_what_a_worker_that_was_ended_has_left_goes_while_the_pool_is_open(tier: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    leave = LEAVE.format(kept=str(kept), folder=str(tmp_path))

    async def main() -> None:
        async with SandboxPool(workers=1, tier=tier) as pool:  # type: ignore[arg-type]
            folders = pool.fleet.folder

            def left() -> set[Path]:
                return set(folders.glob("w*"))

            idle = left()
            session = await pool.session()
            assert (await session.run(leave)).status == "ok"
            (of_session,) = left() - idle
            session.end("it was evicted")
            await until(lambda: not of_session.exists())
            call = asyncio.create_task(pool.run(f"{leave}\ntime.sleep(60)"))
            (of_call,) = left()
            if tier == "namespaces":  # what it writes is not seen from here
                await until(lambda: pool.fleet.running)
            else:
                await until((of_call / "scratch/written").exists)
            call.cancel()
            await until(lambda: not of_call.exists())
            assert (await pool.run("1")).status == "ok"
            assert len(left()) == 1

    try:
        asyncio.run(main())
    except SandboxUnavailable as error:
        pytest.skip(f"not on this machine: {error}")
    assert kept.read_text() == "mine"


def test_workers_look_for_a_cgroup_where_they_are_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers that are gone have left there is removed. The folder itself has no kernel behind it."""
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "retcon-1").mkdir()
    monkeypatch.setenv("RETCON_CGROUP", str(tmp_path))

    async def main() -> tuple[str, str]:
        async with SandboxPool(workers=1) as pool:
            ran = await pool.run("import os\nprint('RETCON_CGROUP' in os.environ)")
            return ran.stdout, pool.worker.facts.no_cgroup

    assert asyncio.run(main()) == ("False\n", f"cgroup {tmp_path} does not pass on memory and pids")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cgroup.controllers", "cgroup.procs", "cgroup.subtree_control"
    ]  # fmt: skip
    assert "does not pass on" in probe(0.01).no_cgroup
