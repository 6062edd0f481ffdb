"""What a cell can do to its session, and to no other. Run in the best tier the machine has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Result
from sessions import WALL, using


def attack(*codes: str, limits: Limits = WALL) -> list[Result]:
    """Run the cells in one session, then see that the next session and the next call are as they should be."""
    results: list[Result] = []

    async def work(pool: SandboxPool) -> None:
        session = await pool.session(limits=limits)
        for code in codes:
            try:
                results.append(await session.run(code))
            except SessionLost:
                break
        await session.close()
        probe = "import os, json, sys\nlen(os.listdir()), json.loads('1'), 'poison' in globals(), len(sys.argv)"
        assert (await (await pool.session()).run(probe)).value == "(0, 1, False, 1)"
        assert (await pool.run(probe)).value == "(0, 1, False, 1)"

    using(work)
    return results


@pytest.mark.parametrize(
    "poison",
    [
        "import builtins\n"
        "for name in ('print', 'len', 'repr', 'str', 'type', 'BaseException', 'compile', 'exec', 'eval'):\n"
        "    setattr(builtins, name, None)",
        "import builtins\nbuiltins.__dict__.clear()",
        "import sys\nsys.modules.clear()",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys\nsys.stdout.close()",
        "import os, sys, signal, json, traceback, linecache, marshal, resource\n"
        "for module in (os, signal, json, traceback, linecache, marshal, resource):\n"
        "    for name in dir(module):\n"
        "        if name[0] != '_' and callable(getattr(module, name)): setattr(module, name, None)",
        "import sys\nsys.settrace(lambda *a: 1 / 0)",
        "import gc, sys\ngc.disable(); sys.setrecursionlimit(50)",
    ],
)
def test_a_cell_that_breaks_the_interpreter_is_no_fault_of_ours_and_harms_no_other(poison: str) -> None:
    for result in attack("poison = 1", poison, "1 / 0", "poison"):
        assert result.status in ("ok", "error", "timeout"), result


def test_replaced_builtins_stay_replaced_for_the_next_cell_and_the_judge_has_its_own() -> None:
    _, second, third = attack(
        "import builtins\nbuiltins.repr = lambda x: 'mine'\nbuiltins.type = 1", "repr(2), type", "1 / 0"
    )
    assert second.value == "('mine', 1)"
    assert third.error_type == "ZeroDivisionError"
    replaces = "import builtins\nours = len\nbuiltins.len = lambda x: 'mine'"
    _, raised, kept, given, own = attack(replaces, "1 / 0", "len([])", "builtins.len = ours", "len([])")
    assert (raised.error_type, kept.value, given.status, own.value) == ("ZeroDivisionError", "'mine'", "ok", "0")


def test_a_cell_that_deletes_its_streams_keeps_what_it_printed_and_its_session() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        result = await session.run("import sys\nprint(1)\nout = sys.stdout\ndel sys.stdout, sys.stderr")
        assert (result.status, result.stdout) == ("ok", "1\n")
        assert (await session.run("print(2)")).error_type == "RuntimeError"  # lost sys.stdout
        assert (await session.run("sys.stdout = out\nprint(3)")).stdout == "3\n"

    using(work)


def test_what_a_later_cell_of_a_session_imports_is_seeded_too() -> None:
    async def work(pool: SandboxPool) -> None:
        drawn = []
        for first in ("x = 1", "x = 1", "import numpy"):
            session = await pool.session(seed=5)
            await session.run(first)
            drawn.append((await session.run("import numpy\nnumpy.random.rand()")).value)
            await session.close()
        assert len(set(drawn)) == 1

    using(work)


def test_a_cell_imports_what_an_earlier_one_wrote() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("open('mine.py', 'w').write('one = 1')")
        state = await session.checkpoint()
        assert (await session.run("import mine\nmine.one")).value == "1"
        await session.rollback(state)
        await session.run("open('mine.py', 'w').write('one = 2')")
        assert (await session.run("import mine\nmine.one")).value == "2"

    using(work)


def test_what_a_cell_is_given_is_there_as_a_whole_or_is_refused() -> None:
    """By name, as it is no fault of the cell's: up to the session's own limit, whatever an earlier cell's was."""

    async def work(pool: SandboxPool) -> None:
        session = await pool.session(limits=Limits(file_mb=2))
        code = "import os, sys\nlen(sys.stdin.read()), os.path.exists('a') and os.path.getsize('a')"
        less = Limits(file_mb=1)
        for size in (1 << 20, 2 << 20):
            assert (await session.run(code, stdin="x" * size, limits=less)).value == f"({size}, False)"
        assert (await session.run(code, files={"a": b"x" * size}, limits=less)).value == f"(0, {size})"
        with pytest.raises(ValueError, match=r"'a' takes 2\.1 MiB, above the session's limit file_mb of 2"):
            await session.run(code, files={"a": b"x" * (size + 99_999)})
        with pytest.raises(ValueError, match=r"stdin takes 3\.0 MiB"):
            await session.run(code, stdin="x" * (3 << 20))
        assert (await session.run("open('b', 'w').write('x' * (2 << 20))", limits=less)).error_type == "OSError"
        assert (await session.run(code)).value == f"(0, {size})"

    using(work)


def test_reading_the_next_command_away_costs_only_the_session() -> None:
    thief = (
        "import os, threading\n"
        "def steal():\n    while True:\n        try: os.read(3, 1)\n        except OSError: break\n"
        "threading.Thread(target=steal, daemon=True).start()"
    )
    _, *later = attack(thief, "1", limits=Limits(wall_seconds=0.5))
    assert all(result.status in ("ok", "timeout", "error") for result in later)


def test_a_cell_cannot_wake_a_frozen_copy_and_ending_it_costs_only_its_session() -> None:
    def shoot(number: int) -> str:
        return (
            "import os\nfor name in os.listdir('/proc'):\n"
            "    if name.isdigit() and int(name) not in (1, os.getpid()):\n"
            f"        try: os.kill(int(name), {number})\n        except OSError: pass"
        )

    async def work(pool: SandboxPool) -> None:
        if pool.tier != "namespaces":
            pytest.skip("this machine grants no process namespace")
        session = await pool.session(limits=WALL)
        await session.run("x = 1")
        state = await session.checkpoint()
        for number in (signal.SIGCONT, signal.SIGCONT, signal.SIGINT):
            assert (await session.run(shoot(number))).status == "ok"
        assert (await session.run("x = 2\nx")).value == "2"
        await session.rollback(state)
        assert (await session.run("x")).value == "1"
        assert (await session.run(shoot(signal.SIGKILL))).status == "ok"
        assert (await session.run("x")).value == "1"
        with pytest.raises(SessionLost, match="frozen copy"):
            await session.rollback(state)
        with pytest.raises(SessionLost):
            await session.run("x")
        assert (await pool.run("1")).value == "1"

    using(work)


FULL = """
import os
os.chdir('..')
for number in range(5):
    with open(str(number), 'wb') as file: file.write(b'x' * (12 << 20))
"""
HELD = "held = [open(str(number), 'r+b') for number in range(5)]"
DELETED = "for number in range(5): os.unlink(str(number))"


def test_a_rollback_that_its_own_files_prevent_is_no_fault_of_ours() -> None:
    async def work(pool: SandboxPool) -> None:
        if pool.tier != "namespaces":
            pytest.skip("there is no bound of its own on the room for files")
        session = await pool.session(limits=WALL)
        await session.run("x = 1")
        small = await session.checkpoint()
        await session.run(FULL)
        full = await session.checkpoint()
        await session.run(HELD)
        holds = await session.checkpoint()
        await session.run(DELETED)  # the copy keeps all the room there is
        with pytest.raises(SessionLost, match="could not be restored") as lost:
            await session.rollback(full)
        assert lost.value.by_own_code
        await session.discard(holds)
        await session.rollback(small)
        assert (await session.run("x, os.listdir() if 'os' in globals() else []")).value == "(1, [])"

    using(work)


# finds the interpreter's own objects, from a cell
INSIDE = """
import sys
frame = sys._getframe()
while 'command' not in frame.f_locals: frame = frame.f_back
me, token = frame.f_locals['self'], frame.f_locals['command']['token']
"""


def test_what_is_said_of_a_copy_is_not_believed_to_be_a_number() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session(limits=WALL)
        long = "lambda command: [me._send_report(command['token'], '\\0' + '9' * 5000) for _ in range(2)]"
        await session.run(f"{INSIDE}\nme._operations['freeze'] = {long}")
        with pytest.raises(SessionLost) as lost:
            await session.checkpoint()
        assert lost.value.by_own_code

    using(work)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak(pid: int) -> int:
    """Bytes that were in memory at most."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


def test_a_cell_that_floods_the_keeper_in_the_interpreters_name_does_not_fill_its_memory() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session(limits=Limits(wall_seconds=2))
        flood = "part = (token + b'!' + b'x' * 30000 + token) * 20\nwhile True: me._control.sendall(part)"
        result = await session.run(INSIDE + flood)
        assert result.status in ("timeout", "error")
        worker = session.worker  # type: ignore[attr-defined]
        assert len(result.error_type or "") <= 200
        assert max(map(peak, [worker.pid, *children(worker.pid)])) < 100 << 20
        assert (await session.run("1 + 1")).value == "2"

    using(work)


def test_a_rollback_ends_threads_daemons_and_their_writing() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session(limits=WALL)
        await session.run("import os, threading, time")
        state = await session.checkpoint()
        started = await session.run(
            "reads, writes = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        os.write(writes, b'%d' % os.getpid())\n"
            "        while True: open('daemon', 'a').write('x'); print('daemon', flush=True)\n"
            "    os._exit(0)\n"
            "def scribble():\n    while True: open('thread', 'a').write('x')\n"
            "threading.Thread(target=scribble, daemon=True).start()\n"
            "int(os.read(reads, 20))"
        )
        await session.rollback(state)
        result = await session.run(f"time.sleep(0.01)\nos.kill({started.value}, 0)")
        assert (result.status, result.error_type, result.stdout) == ("error", "ProcessLookupError", "")
        assert (await session.run("os.listdir()")).value == "[]"

    using(work)


def test_a_fork_bomb_is_bounded_and_undone() -> None:
    bomb = (
        "import os, time\n"
        "for n in range(1000):\n    try:\n        pid = os.fork()\n    except OSError:\n        break\n"
        "    if pid == 0:\n        time.sleep(60)\nn"
    )

    async def work(pool: SandboxPool) -> None:
        if pool.tier == "rlimits" and os.getuid() == 0 and not pool.worker.facts.own_user:
            pytest.skip("this machine grants no user but root, whose processes the kernel does not count")
        session = await pool.session(limits=Limits(processes=8, wall_seconds=10))
        state = await session.checkpoint()
        for _repeat in range(2):
            assert 1 <= int((await session.run(bomb)).value or 0) < 500
            with pytest.raises(SandboxUnavailable, match="have not ended"):
                await session.checkpoint()
            await session.rollback(state)
        assert (await session.run("1")).value == "1"

    using(work)


def test_memory_and_cpu_of_what_a_cell_starts_are_limited_too() -> None:
    spin = (
        "import os\npid = os.fork()\nif pid == 0:\n    while True: pass\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    first, second = attack(spin, "len(bytearray(200 << 20))", limits=Limits(cpu_seconds=0.3, memory_mb=64))
    assert first.value == "-9"
    assert (second.status, second.error_type) == ("limit", "MemoryError")
