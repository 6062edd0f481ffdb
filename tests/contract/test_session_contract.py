"""What every sandbox's sessions owe their caller, whatever the tier."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import pytest
from test_sandbox_contract import pytestmark  # noqa: F401

from retcon.core.errors import CheckpointRefused, SessionLost
from retcon.sandbox.jail.messages import CHECKPOINTS
from retcon.sandbox.types import Limits, Result, Sandbox, Session
from sandboxes import Opened

STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"


def using(opened: Opened, work: Callable[[Sandbox, Session], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main(sandbox: Sandbox) -> None:
        session = await sandbox.session(limits=limits)
        try:
            await work(sandbox, session)
        finally:
            await session.close()

    opened.run(main)


def cells(opened: Opened, *codes: str, limits: Limits | None = None) -> list[Result]:
    results: list[Result] = []

    async def work(_: Sandbox, session: Session) -> None:
        results.extend([await session.run(code) for code in codes])

    using(opened, work, limits)
    return results


async def value(session: Session, code: str) -> str | None:
    result = await session.run(code)
    assert result.status == "ok", result
    return result.value


def test_variables_imports_functions_and_open_files_stay(opened: Opened) -> None:
    first, second, third = cells(
        opened,
        "import math\nx = 2\ndef f(a): return a * x\nout = open('a.txt', 'w')",
        "x = 3; print(out.write('hi')); out.flush()\nf(math.factorial(3))",
        "open('a.txt').read()",
    )
    assert (first.status, first.value, first.exit_code) == ("ok", None, None)
    assert (second.status, second.stdout, second.value) == ("ok", "2\n", "18")
    assert third.value == "'hi'"


def test_the_source_of_what_cells_defined_can_be_read(opened: Opened) -> None:
    _, second, third = cells(
        opened,
        "def f(a):\n    return a",
        "import inspect\nclass A:\n    x = 1\ninspect.getsource(f), inspect.getsource(A), __file__",
        "'\ud800'",
    )
    assert second.value == repr(("def f(a):\n    return a\n", "class A:\n    x = 1\n", "<cell 2>"))
    assert (third.status, third.error_type) == ("error", "UnicodeEncodeError")


def test_files_of_earlier_cells_are_handed_back_too(opened: Opened) -> None:
    """Of the scratch folder, wherever the program has gone; through no link; also by the cell that ends it all."""
    write = (
        "import os\nos.mkdir('d')\nopen('d/a', 'wb').write(b'\\0x')\nos.symlink('/etc/hostname', 'link')\n"
        "os.symlink('/etc', 'folder')\nos.mkfifo('fifo')\nopen('big', 'wb').write(bytes(9 << 20))\nos.chdir('d')"
    )
    asked = ["d/a", "absent", "link", "folder/hostname", "fifo", "d", "big"]

    async def work(_: Sandbox, session: Session) -> None:
        assert not (await session.run(write)).files
        state = await session.checkpoint()
        failed = await session.run("open('a', 'w').write('y')\n1 / 0", fetch=asked)
        assert (failed.error_type, failed.files) == ("ZeroDivisionError", {"d/a": b"y"})
        assert (await session.run("", fetch=["d/a", "big", "a"])).files == {"d/a": b"y"}
        ended = await session.run("open('a', 'w').write('z')\nos._exit(1)", fetch=["d/a"])
        assert (ended.exit_code, ended.files) == (1, {"d/a": b"z"})
        await session.rollback(state)
        assert (await session.run("1", fetch=["d/a"])).files == {"d/a": b"\0x"}
        for name in ("/etc/passwd", "../x", ""):
            with pytest.raises(ValueError, match="inside the scratch folder"):
                await session.run("1", fetch=[name])

    using(opened, work)


def test_a_traceback_shows_the_lines_of_the_cells_it_went_through(opened: Opened) -> None:
    _, second = cells(opened, "def f(a):\n    return 1 / a", "print('before')\nf(0)")
    assert (second.status, second.error_type, second.stdout) == ("error", "ZeroDivisionError", "before\n")
    assert second.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n'
        "    f(0)\n" + "    ~^^^\n" * (sys.version_info >= (3, 13)) + '  File "<cell 1>", line 2, in f\n'
        "    return 1 / a\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
    )


FAILING = [
    ("1 / 0", "error", "ZeroDivisionError", "ZeroDivisionError: division by zero"),
    ("print(", "error", "SyntaxError", "SyntaxError: '(' was never closed"),
    ("import sys; sys.exit()", "ok", None, None),
    ("import sys; sys.exit(3)", "error", "SystemExit", "SystemExit: 3"),
    ("import sys; sys.exit(10**30)", "error", "SystemExit", "SystemExit: 255"),
    ("import sys\nclass X:\n    def __str__(s): 1 / 0\nsys.exit(X())", "error", "SystemExit", "SystemExit: 1"),
    ("class S(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise S", "error", "SystemExit", "SystemExit: 1"),
    ("raise type('', (Exception,), {})('boom')", "error", "Exception", None),
    ("raise KeyboardInterrupt", "error", "KeyboardInterrupt", "KeyboardInterrupt"),
    ("def g(): g()\ng()", "error", "RecursionError", None),
    ("import os\nif os.fork() == 0: raise SystemExit\nos.wait()[1]", "ok", None, None),
    ("import os\nprint('x')\nif os.fork() == 0: 1 / 0\nos.waitpid(-1, 0)[1] and None", "ok", None, None),
    ("y = []\nwhile True: y.append(bytearray(10**6))", "limit", "MemoryError", "MemoryError"),
]


def test_cells_that_fail_leave_the_session_as_it_is(opened: Opened) -> None:
    codes = [code for one, *_ in FAILING for code in (one, "globals().pop('y', None)\nx + 1")]
    _, *results = cells(opened, "x = 1", *codes, limits=Limits(memory_mb=64))
    for (code, status, error_type, last), cell, after in zip(FAILING, results[::2], results[1::2], strict=True):
        assert (cell.status, cell.error_type, cell.exit_code) == (status, error_type, None), code
        assert "retcon" not in cell.stderr
        if last is not None:
            assert cell.stderr.splitlines()[-1] == last
        assert (after.status, after.value) == ("ok", "2"), code


@pytest.mark.parametrize(
    ("code", "status", "error_type", "exit_code"),
    [
        ("import os; print('x', flush=True); os._exit(0)", "ok", None, 0),
        ("import os; print('x', flush=True); os._exit(3)", "error", "SystemExit", 3),
        ("import os; print('x', flush=True); os.kill(os.getpid(), 9)", "error", "SIGKILL", -9),
        ("import ctypes; print('x', flush=True); ctypes.string_at(0)", "error", "SIGSEGV", -11),
        ("import os; print('x', flush=True); os.kill(os.getpid(), 24)", "error", "SIGXCPU", -24),
        ("import os; print('x', flush=True); os.closerange(0, 64); 1 / 0", "error", "SystemExit", 1),
    ],
)
def test_a_cell_that_ends_the_interpreter_is_judged_by_that_and_says_so(
    opened: Opened, code: str, status: str, error_type: str | None, exit_code: int
) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        result = await session.run(code)
        assert (result.status, result.error_type, result.exit_code) == (status, error_type, exit_code)
        assert result.stdout == "x\n"
        assert "The interpreter has ended: its variables are gone.\n" in result.stderr
        with pytest.raises(SessionLost, match="its code ended the interpreter") as lost:
            await session.run("1")
        assert lost.value.by_own_code
        with pytest.raises(SessionLost):
            await session.checkpoint()

    using(opened, work)


@pytest.mark.parametrize(
    ("code", "limits", "line"),
    [
        ("while True: pass", Limits(cpu_seconds=0.2), "TimeoutError: no end after 0.2 s of CPU time"),
        ("import time\ntime.sleep(60)", Limits(wall_seconds=0.2), "TimeoutError: no end after 0.2 s"),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
            Limits(wall_seconds=0.5),
            "TimeoutError: no end after 0.5 s",
        ),
    ],
)
def test_a_cell_out_of_time_is_interrupted_and_the_session_lives(
    opened: Opened, code: str, limits: Limits, line: str
) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        await session.run("x = 1")
        for _repeat in range(2):  # each cell has clocks of its own
            result = await session.run("print('start')\n" + code, limits=limits)
            assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "start\n")
            assert result.stderr.splitlines()[-1] == line
            assert 'File "<cell' in result.stderr
        assert await value(session, "x") == "1"

    using(opened, work)


def test_a_cell_that_does_not_obey_is_ended_and_can_be_undone(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        await session.run("x = 1")
        state = await session.checkpoint()
        result = await session.run("print('start')\n" + STUBBORN, timeout=0.2)
        assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "start\n")
        assert result.exit_code is not None
        with pytest.raises(SessionLost, match="can be rolled back"):
            await session.run("x")
        await session.rollback(state)
        assert await value(session, "x") == "1"

    using(opened, work)


def test_output_belongs_to_the_cell_in_which_it_was_written(opened: Opened) -> None:
    start = (
        "import threading, sys, os\ngo, done = threading.Event(), threading.Event()\n"
        "def late():\n    go.wait()\n    print('thread')\n    sys.stderr.write('e' * 200000)\n    done.set()\n"
        "threading.Thread(target=late).start()\nprint('one', end='')"
    )
    first, second, third = cells(
        opened, start, "go.set(); done.wait(); print('two')", "os.write(1, b'three')", limits=Limits(output_bytes=1000)
    )
    assert (first.stdout, second.stdout, third.stdout) == ("one", "thread\ntwo\n", "three")
    assert "[199000 bytes cut]" in second.stderr
    assert third.stderr == ""


def test_what_a_cell_leaves_running_goes_on_with_the_next_and_not_in_between(opened: Opened) -> None:
    async def work(sandbox: Sandbox, session: Session) -> None:
        await session.run(
            "import threading, time\ndef spin():\n    while True: pass\n"
            "threading.Thread(target=spin, daemon=True).start()\nused = time.process_time()"
        )
        await sandbox.run("import time\ntime.sleep(0.5)")
        assert float(await value(session, "time.process_time() - used") or 9) < 0.25
        assert (await session.run("time.sleep(9)", timeout=0.3)).status == "timeout"  # here it does go on

    using(opened, work)


def test_each_cell_has_its_own_stdin_and_more_files(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        assert await value(session, "import sys\nsys.stdin.read()") == "''"
        result = await session.run("print(input(), open('d/a').read())", stdin="one\ntwo", files={"d/a": b"file"})
        assert result.stdout == "one file\n"
        assert await value(session, "sys.stdin.read(), open('d/a').read()") == "('', 'file')"
        with pytest.raises(ValueError, match="inside the scratch folder"):
            await session.run("1", files={"../x": b""})

    using(opened, work)


def test_a_rollback_brings_back_variables_files_and_the_random_state(opened: Opened) -> None:
    prepare = (
        "import os, random, stat\nx = [1]\nrandom.seed(7)\nmarker = id(x)\nos.makedirs('d/e')\nos.mkdir('empty')\n"
        "for name in ('kept', 'd/changed', 'd/e/removed', 'grown'): open(name, 'w').write(name)\n"
        "os.chmod('kept', 0o640); os.symlink('kept', 'link'); os.link('kept', 'hard'); os.chmod('empty', 0o500)\n"
        "def tree():\n"
        "    found = {}\n"
        "    for folder, folders, files in os.walk('.'):\n"
        "        for name in folders + files:\n"
        "            path = os.path.join(folder, name)\n"
        "            facts = os.lstat(path)\n"
        "            text = open(path).read() if name in files else ''\n"
        "            found[path] = (oct(facts.st_mode), facts.st_nlink, facts.st_mtime_ns, text)\n"
        "    return sorted(found.items())"
    )
    spoil = (
        "import shutil\nx.append(2); y = 3; random.random()\nopen('new', 'w').close(); os.mkdir('d/new')\n"
        "shutil.rmtree('d/e'); open('d/changed', 'w').write('x'); open('grown', 'a').write('x' * 99999)\n"
        "os.chmod('kept', 0); os.remove('link'); os.symlink('new', 'link'); os.rmdir('empty'); os.chdir('d/new')"
    )

    async def work(_: Sandbox, session: Session) -> None:
        await session.run(prepare)
        before = await value(session, "tree()")
        state = await session.checkpoint()
        drawn = await value(session, "random.random(), marker == id(x)")
        for _repeat in range(3):
            await value(session, spoil)
            await session.rollback(state)
            assert await value(session, "x, 'y' in globals()") == "([1], False)"
            assert await value(session, "tree()") == before
            assert await value(session, "random.random(), marker == id(x)") == drawn

    using(opened, work)


def test_open_files_go_back_to_their_place(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        await session.run(
            "import mmap, os\nopen('a', 'w').write('0123456789')\nread = open('a', 'rb', buffering=0); read.seek(2)\n"
            "log = open('log', 'w'); log.write('buffered')\n"
            "shared = open('a', 'r+b'); area = mmap.mmap(shared.fileno(), 0)"
        )
        state = await session.checkpoint()
        for change in ("area[:3] = b'xxx'", "log.flush(); read.read()", "os.remove('a'); open('a', 'w').write('new')"):
            assert await value(session, "area[:]") == "b'0123456789'"
            await value(session, change)
            await session.rollback(state)
            assert await value(session, "read.tell(), read.read(3)") == "(2, b'234')"
            assert await value(session, "log.flush(); open('log').read()") == "'buffered'"

    using(opened, work)


def test_one_can_go_back_again_further_and_forward_again(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        fresh = await session.checkpoint()
        states = []
        for n in range(4):
            await session.run(f"x = {n}")
            states.append(await session.checkpoint())
        await session.rollback(states[2])
        assert await value(session, "x") == "2"
        await session.rollback(states[3])
        assert await value(session, "x") == "3"
        await session.rollback(states[2])
        await session.discard(states[1])
        await session.discard(states[1])
        with pytest.raises(KeyError, match="no checkpoint"):
            await session.rollback(states[1])
        assert await value(session, "x") == "2"
        await session.rollback(states[0])
        await session.run("import os; os._exit(1)")
        await session.rollback(states[0])
        assert await value(session, "x") == "0"
        await session.rollback(fresh)
        assert await value(session, "'x' in globals()") == "False"

    using(opened, work)


def test_a_cell_may_bring_smaller_limits_but_no_larger_ones(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        bomb = "x = bytearray(100 << 20)\nlen(x)"
        assert (await session.run(bomb, memory=64)).status == "limit"
        assert (await session.run(bomb)).value == str(100 << 20)
        with pytest.raises(ValueError, match="limit memory_mb is 300, above the session's 200"):
            await session.run("1", memory=300)

    using(opened, work, Limits(memory_mb=200))


def test_sessions_do_not_see_each_other_and_calls_go_on(opened: Opened) -> None:
    async def work(sandbox: Sandbox, session: Session) -> None:
        other = await sandbox.session()
        await session.run("x = 1; open('a', 'w').close(); import builtins; builtins.len = None")
        assert await value(other, "import os\n'x' in globals(), os.listdir(), len([])") == "(False, [], 0)"
        result = await sandbox.run("import os\n'x' in globals(), os.listdir(), len([])")
        assert result.value == "(False, [], 0)"
        assert other.id != session.id
        await other.close()

    using(opened, work)


def test_a_closed_session_says_so(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        await session.run("x = 1")
        state = await session.checkpoint()
        await session.close()
        await session.close()
        with pytest.raises(SessionLost, match="closed"):
            await session.run("x")
        with pytest.raises(SessionLost, match="closed"):
            await session.rollback(state)
        await session.discard(state)

    using(opened, work)


def test_a_checkpoint_too_many_or_too_large_is_refused_and_the_session_goes_on(opened: Opened) -> None:
    async def work(_: Sandbox, session: Session) -> None:
        await session.run("import os\nd = '.'\nfor n in range(40):\n    d += '/d'\n    os.mkdir(d)")
        with pytest.raises(CheckpointRefused, match="nested deeper") as refused:
            await session.checkpoint()
        assert not refused.value.full
        await session.run("import shutil\nshutil.rmtree('d')")
        for _repeat in range(CHECKPOINTS):
            state = await session.checkpoint()
        with pytest.raises(CheckpointRefused, match="discard some") as refused:
            await session.checkpoint()
        assert refused.value.full
        await session.discard(state)
        await session.checkpoint()
        assert await value(session, "1") == "1"

    using(opened, work)


def test_random_numbers_of_a_session_follow_from_its_seed_and_go_on_from_cell_to_cell(opened: Opened) -> None:
    async def drawn(sandbox: Sandbox, seed: int | None) -> list[str | None]:
        session = await sandbox.session(seed=seed)
        try:
            return [await value(session, code) for code in ("import random; random.random()", "random.random()")]
        finally:
            await session.close()

    async def main(sandbox: Sandbox) -> list[list[str | None]]:
        return [await drawn(sandbox, seed) for seed in (5, 5, 6, None, None)]

    first, again, *others = opened.run(main)
    assert first == again
    assert len({tuple(one) for one in (first, *others)}) == 4
    assert all(a != b for a, b in (first, *others))


ENDS = {
    "pipe": ("import os\nr, w = os.pipe(); n = os.write(w, b'ab')", "os.close(w); os.read(r, 9), os.read(r, 9)", ""),
    "pipe for a child": (
        "import subprocess, sys\nturn = [sys.executable, '-c', 'print(input()[::-1])']\n"
        "p = subprocess.Popen(turn, stdin=-1, stdout=-1, text=True)",
        "p.communicate('abc')[0]",
        "have not ended",
    ),
    "pipe of a child that has ended": (
        "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'print(1)'], stdout=-1)\n"
        "p.wait(); p.stdout.read()",
        "p.stdout.read(), p.returncode",
        "",
    ),
    "socket pair": ("import socket\na, b = socket.socketpair()", "a.close(); b.recv(9)", "a socket is open"),
    "port": (
        "import socket\ns = socket.create_server(('127.0.0.1', 5000))",
        "s.close(); s = socket.create_server(('127.0.0.1', 5000)); s.getsockname()",
        "a socket is open",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\nt = ThreadPoolExecutor(1); t.submit(abs, 1).result()",
        "t.submit(abs, -2).result()",
        "threads",
    ),
    "sqlite": (
        "import sqlite3\nd = sqlite3.connect('d')\n"
        "d.execute('create table t(x)'); d.execute('insert into t values(1)'); None",
        "d.rollback(); d.execute('select count(*) from t').fetchall()",
        "",
    ),
    "event loop": (
        "import asyncio\nl = asyncio.new_event_loop()",
        "l.run_until_complete(asyncio.sleep(0, 5))",
        "neither a file nor an unnamed pipe",
    ),
    "deleted file": (
        "import tempfile\nf = tempfile.TemporaryFile(); f.write(b'a'); f.flush()",
        "f.write(b'b'); f.seek(0); f.read()",
        "deleted",
    ),
    "hook": ("import os\nforks = []\nos.register_at_fork(before=lambda: forks.append(0))", "forks", ""),
}


@pytest.mark.parametrize("made", ENDS)
def test_a_checkpoint_changes_nothing_of_the_program_or_is_refused(opened: Opened, made: str) -> None:
    """No copy has an end that the program waits for; what goes back is all there was."""
    first, second, why = ENDS[made]

    async def alone(sandbox: Sandbox) -> Result:
        session = await sandbox.session()
        begun = await session.run(first)
        result = await session.run(second, timeout=5)
        await session.close()
        if begun.status != "ok":
            pytest.skip(f"this tier does not grant it: {begun.error_type}")
        assert result.status == "ok"
        return result

    async def work(sandbox: Sandbox, session: Session) -> None:
        expected = await alone(sandbox)
        await session.run(first)
        state = ""
        if why:
            with pytest.raises(CheckpointRefused, match=why) as refused:
                await session.checkpoint()
            assert not refused.value.full
        else:
            state = await session.checkpoint()
        for _repeat in range(3 if state else 1):
            result = await session.run(second, timeout=5)
            assert (result.status, result.stdout, result.value) == ("ok", expected.stdout, expected.value)
            if state:
                await session.rollback(state)

    using(opened, work)
