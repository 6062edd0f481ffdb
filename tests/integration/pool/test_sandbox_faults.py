"""The pool's own doings with real processes: profiles, growth, faults, back-pressure, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.sandbox.jail.messages import OpenSession
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.pool.session import bounds
from retcon.sandbox.types import Limits, Result

SOON = 60.0  # seconds: an end that takes longer never comes
OPENING = OpenSession(bounds(Limits()))
SLOW = "import time\ntime.sleep(0.3)\nprint('done')"


def using(work: Callable[[SandboxPool], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with SandboxPool(**options) as pool:  # type: ignore[arg-type]
            await work(pool)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)


def descendants(pid: int) -> list[int]:
    """Of a process, those that run; one that ends while it is looked at has none."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def held(processes: list[int]) -> list[int]:
    """Descriptors of those that have not ended meanwhile."""
    holds: list[int] = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            holds.append(os.pidfd_open(pid))
    return holds


def ended(process: int) -> bool:
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(SOON * 1000))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with a few packages of its own, some of which misbehave."""
    folder = tmp_path_factory.mktemp("venv")
    for part in (folder, *folder.parents[:-2]):
        part.chmod(part.stat().st_mode | 0o055)  # calls may run as another user
    venv.create(folder / "env", symlinks=True)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "good.py").write_text("import good_part\nprint('imported')\nanswer = 42\n")
    (site / "good_part.py").write_text("")
    (site / "broken.py").write_text("raise RuntimeError('it never worked')\n")
    (site / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (site / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nanswer = 43\n"
    )
    return str(folder / "env/bin/python")


def test_calls_import_what_the_interpreter_has(python: str) -> None:
    async def work(pool: SandboxPool) -> None:
        assert (await pool.run("import good\ngood.answer")).value == "42"
        result = await pool.run("import numpy")  # not in that environment, and its profile falls back
        assert (result.status, result.error_type) == ("error", "ModuleNotFoundError")
        assert "cannot import numpy" in pool.faults["numpy"]

    using(work, python=python, workers=1)


def test_a_custom_package_is_preloaded(python: str) -> None:
    async def work(pool: SandboxPool) -> None:
        result = await pool.run("import sys\nprint('good' in sys.modules)\nimport good")
        assert result.stdout == "True\n"  # and what its import printed did not come with it
        assert set(pool.fleet.zygotes) == {"bare", "good"}  # which is up first is chance

    using(work, python=python, workers=2, packages=("good",), warm=("good",))


@pytest.mark.parametrize(
    ("package", "fault", "result"),
    [
        ("threaded", "starts 1 thread", ("ok", "43")),
        ("broken", "it never worked", ("error", None)),
        ("deadly", "did not come up", ("error", None)),
    ],
)
def test_a_package_that_cannot_be_preloaded_is_imported_by_the_call(
    python: str, package: str, fault: str, result: tuple[str, str | None]
) -> None:
    async def work(pool: SandboxPool) -> None:
        had = await pool.run(f"import {package}\n{package}.answer")
        assert (had.status, had.value) == result
        assert fault in pool.faults[package]
        assert (await pool.run("print('next')")).stdout == "next\n"

    using(work, python=python, workers=1, packages=(package,))


def test_a_package_that_is_not_installed_is_refused_with_the_nearest_name(python: str) -> None:
    with pytest.raises(SandboxUnavailable, match=r"'goood' is not installed for .*did you mean 'good'"):
        asyncio.run(SandboxPool(python=python, packages=("goood",)).start())
    with pytest.raises(SandboxUnavailable, match=f"`{python} -m pip install scikit-learn`"):
        asyncio.run(SandboxPool(python=python, packages=("sklearn",)).start())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('{"version": [3, 9, 18]}', "Python 3.9.18: calls need 3.11 or later"),
        ('{"version": [2, 7, 18]}', "Python 2.7.18: calls need 3.11 or later"),
        ("hello", "cannot be asked for its packages"),
    ],
)
def test_an_interpreter_that_is_too_old_or_none_is_refused(tmp_path: Path, answer: str, message: str) -> None:
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\necho '{answer}'\n")
    old.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=f"python is {old}, which .*{message}"):
        asyncio.run(SandboxPool(python=str(old)).start())


def test_a_session_has_all_packages_whatever_its_first_cell_imports(python: str) -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("x = 1")
        result = await session.run("import sys\n[name in sys.modules for name in ('good', 'wave')]")
        assert result.value == "[True, True]"

    folder = str(Path(python).parents[1])  # of the venv
    using(work, python=folder, workers=1, packages=("good", "wave"))


def test_a_warm_profile_that_cannot_be_had_is_refused(python: str) -> None:
    with pytest.raises(SandboxUnavailable, match="cannot import sympy"):
        asyncio.run(SandboxPool(python=python, warm=("sympy",)).start())


def test_preloaded_packages_draw_fresh_random_numbers() -> None:
    async def work(pool: SandboxPool) -> None:
        code = "import random, numpy\nrandom.random(), numpy.random.rand(), numpy.random.default_rng().random()"
        first, second = (await pool.run(code)).value, (await pool.run(code)).value
        assert first is not None
        assert second is not None
        assert not set(first.strip("()").split(", ")) & set(second.strip("()").split(", "))

    using(work, workers=1)


def test_one_place_serves_every_profile_in_turn() -> None:
    async def work(pool: SandboxPool) -> None:
        codes = ["print(1)", "import numpy\nprint(numpy.int64(2))", "import random\nprint(3)"] * 3
        results = await asyncio.gather(*(pool.run(code) for code in codes))
        assert [result.stdout for result in results] == ["1\n", "2\n", "3\n"] * 3
        assert len(pool.fleet.workers) == 1

    using(work, workers=1)


def test_short_calls_pass_endless_ones() -> None:
    async def work(pool: SandboxPool) -> None:
        endless = [asyncio.create_task(pool.run("while True: pass")) for _ in range(3)]
        results = await asyncio.gather(*(pool.run(f"print({n})") for n in range(50)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(50)]
        assert not any(task.done() for task in endless)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

    using(work, workers=4, limits=Limits(cpu_seconds=SOON, wall_seconds=SOON))


def test_a_call_whose_worker_is_killed_is_run_again() -> None:
    async def work(pool: SandboxPool) -> None:
        call = asyncio.create_task(pool.run(SLOW))
        await until(lambda: pool.fleet.running)
        first = pool.worker.pid
        os.kill(first, signal.SIGKILL)
        result = await call
        assert (result.status, result.stdout) == ("ok", "done\n")
        assert pool.worker.pid != first

    using(work, workers=1)


def test_a_call_whose_worker_is_killed_has_waited_and_is_run_again() -> None:
    async def work(pool: SandboxPool) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + 0.05
        call = asyncio.create_task(pool.run(SLOW, wait=0.05))
        await until(lambda: pool.fleet.running and loop.time() > latest)
        os.kill(pool.worker.pid, signal.SIGKILL)
        assert (await call).stdout == "done\n"

    using(work, workers=1)


def test_a_call_whose_workers_keep_dying_is_a_fault_of_ours() -> None:
    async def work(pool: SandboxPool) -> None:
        call = asyncio.create_task(pool.run("import time\ntime.sleep(60)"))
        killed: set[int] = set()
        while not call.done():
            fresh = {worker.pid for worker in pool.fleet.workers} - killed
            for pid in fresh:
                os.kill(pid, signal.SIGKILL)
            killed |= fresh
            await asyncio.wait([call], timeout=0.001)
        result = call.result()
        assert (result.status, result.error_type) == ("infrastructure", None)
        assert "died" in result.stderr
        assert len(killed) == 2
        assert (await pool.run("print('next')")).stdout == "next\n"

    using(work, workers=1)


def test_a_killed_zygote_costs_no_call() -> None:
    async def work(pool: SandboxPool) -> None:
        calls = [asyncio.create_task(pool.run(f"{SLOW}\nprint({n})")) for n in range(12)]
        await until(lambda: pool.fleet.running == 3)
        first = pool.fleet.zygotes["bare"]
        os.kill(first, signal.SIGKILL)
        results = await asyncio.gather(*calls)
        assert [result.stdout for result in results] == [f"done\n{n}\n" for n in range(12)]
        assert pool.fleet.zygotes["bare"] != first

    using(work, workers=3)


def test_a_zygote_that_is_asked_for_more_workers_than_its_socket_holds_is_not_given_up() -> None:
    async def work(pool: SandboxPool) -> None:
        zygote = pool.fleet.zygotes["bare"]
        os.kill(zygote, signal.SIGSTOP)
        asked = [asyncio.create_task(pool.fleet.extra("bare", OPENING)) for _ in range(300)]
        await asyncio.sleep(0.1)  # all that are taken have been asked for
        os.kill(zygote, signal.SIGCONT)
        for worker in asyncio.as_completed(asked):
            (await worker).kill()
        assert pool.fleet.zygotes["bare"] == zygote

    using(work, workers=1)


def test_a_session_that_begins_under_a_killed_zygote_waits_for_the_next_one() -> None:
    async def work(pool: SandboxPool) -> None:
        for number in range(5):  # no call between, which would start a zygote of its own
            if (zygote := pool.fleet.zygotes.get("bare")) is not None:  # else its death was noticed after the session
                os.kill(zygote, signal.SIGKILL)
            session = await pool.session()
            result = await session.run(f"print({number})")
            assert (result.status, result.stdout) == ("ok", f"{number}\n"), result
            await session.close()

    using(work, workers=1)


def test_a_worker_that_is_given_back_after_its_zygote_died_blocks_no_caller() -> None:
    async def work(pool: SandboxPool) -> None:
        worker = await pool.fleet.take("bare")
        waiting = asyncio.create_task(pool.fleet.take("bare"))
        os.kill(pool.fleet.zygotes["bare"], signal.SIGKILL)
        await until(lambda: not pool.fleet.zygotes)
        pool.fleet.give(worker, keep=True)
        async with asyncio.timeout(SOON):
            pool.fleet.give(await waiting, keep=True)
        assert (await pool.run("print(1)")).stdout == "1\n"

    using(work, workers=1)


def test_a_call_whose_profile_was_given_up_meanwhile_goes_to_bare(python: str) -> None:
    async def work(pool: SandboxPool) -> None:
        first = await pool.run("import broken\nprint(1)")
        assert (first.status, list(pool.faults)) == ("error", ["broken"]), first
        for _ in range(2):
            async with asyncio.timeout(SOON):
                worker = await pool.fleet.take("broken")
            assert worker.profile == "bare"
            pool.fleet.give(worker, keep=True)
        worker = await pool.fleet.extra("broken", OPENING)
        assert worker.profile == "bare"
        worker.kill()

    using(work, workers=1, python=python, packages=("broken",))


def test_a_cancelled_call_ends() -> None:
    async def work(pool: SandboxPool) -> None:
        call = asyncio.create_task(pool.run("import time\ntime.sleep(60)"))
        await until(lambda: pool.fleet.running)
        process = os.pidfd_open(pool.worker.pid)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended(process)
        os.close(process)
        assert (await pool.run("print('next')")).stdout == "next\n"

    using(work, workers=1, limits=Limits(wall_seconds=SOON))


def test_cancelling_a_call_that_waits_leaves_the_others_alone() -> None:
    async def work(pool: SandboxPool) -> None:
        calls = [asyncio.create_task(pool.run(f"{SLOW}\nprint({n})")) for n in range(4)]
        await until(lambda: pool.fleet.waiting == 3)
        calls[1].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert [r.stdout for r in results if isinstance(r, Result)] == [f"done\n{n}\n" for n in (0, 2, 3)]

    using(work, workers=1)


def test_a_full_queue_says_so_and_loses_nothing() -> None:
    async def work(pool: SandboxPool) -> None:
        assert not pool.full
        calls = [asyncio.create_task(pool.run(f"{SLOW}\nprint({n})")) for n in range(5)]
        await until(lambda: pool.fleet.running)
        assert pool.full
        assert pool.fleet.waiting == 2  # the other two wait with nothing prepared
        results = await asyncio.gather(*calls)
        assert [result.stdout for result in results] == [f"done\n{n}\n" for n in range(5)]
        assert not pool.full

    using(work, workers=1, queue=2)


def test_a_call_waits_no_longer_for_room_in_the_queue_than_for_a_worker() -> None:
    async def work(pool: SandboxPool) -> None:
        calls = [asyncio.create_task(pool.run("import time\ntime.sleep(600)", timeout=600)) for _ in range(2)]
        await until(lambda: pool.full)
        with pytest.raises(SandboxBusy, match="no worker was free"):
            await asyncio.wait_for(pool.run("1", wait=0.01), SOON)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert (await pool.run("1", wait=SOON)).value == "1"

    using(work, workers=1, queue=1)


def test_nothing_is_left_of_a_closed_pool() -> None:
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    others = set(descendants(os.getpid()))
    folder: list[Path] = []

    async def work(pool: SandboxPool) -> None:
        await asyncio.gather(*(pool.run("import os, numpy\nos.fork()") for _ in range(20)))
        calls = [asyncio.create_task(pool.run("import time\ntime.sleep(60)")) for _ in range(20)]
        await until(lambda: pool.fleet.running)
        folder.append(pool.fleet.folder)
        await pool.close()
        statuses = [
            getattr(r, "status", type(r).__name__) for r in await asyncio.gather(*calls, return_exceptions=True)
        ]
        assert set(statuses) == {"infrastructure", "SandboxUnavailable"}

    using(work, workers=4)
    assert set(descendants(os.getpid())) <= others
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before
    assert not folder[0].exists()


@pytest.mark.parametrize("tier", [None, "rlimits"])
def test_nothing_is_left_of_a_killed_pool(tier: str | None) -> None:
    script = (
        "import asyncio\nfrom retcon.sandbox.pool import SandboxPool\n"
        "async def main():\n"
        f"    async with SandboxPool(workers=3, tier={tier!r}, warm=('stdlib',)) as pool:\n"
        "        code = 'import os, time\\nif os.fork() == 0: os.setsid()\\ntime.sleep(600)'\n"
        "        calls = [asyncio.create_task(pool.run(code)) for _ in range(3)]\n"
        "        while pool.fleet.running < 3 and not any(call.done() for call in calls): await asyncio.sleep(.001)\n"
        "        print(pool.fleet.folder, flush=True)\n"
        "        await asyncio.gather(*calls)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        holds = held(descendants(process.pid))
        process.kill()
    assert len(holds) >= 2 + 3
    assert all(ended(hold) for hold in holds)
    for hold in holds:
        os.close(hold)
    assert not folder.exists()
