"""Attacks on the result: a failure cannot be made to look like anything else, nor one call's result like another's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail import ALL, NAMESPACES, Jail, contained_by

# In a cgroup that has less memory than its calls may take: the kernel ends one, and neither the call nor the worker did.
STARVED = """
import asyncio, subprocess, sys, warnings
from pathlib import Path
from retcon.core.errors import SessionLost
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits

Path(sys.argv[2], "cgroup.procs").write_text("0")
warnings.simplefilter("ignore")
programs = ("import os\\nos.kill(os.getpid(), 9)", "x = b'x' * (800 << 20)", "print('on')")

def told(result, lost):
    said = result.stdout.strip() or result.stderr.strip()
    print(result.status, result.error_type, said.rpartition("\\n")[2], lost, sep="|")

async def after(session):
    try:
        await session.run("1")
    except SessionLost as lost:
        return "its own code" if lost.by_own_code else "a fault"
    return ""

async def main():
    limits = Limits(memory_mb=2000, cpu_seconds=30)
    async with SandboxPool(workers=1, tier=sys.argv[1], limits=limits) as sandbox:
        for code in programs:
            told(await sandbox.run(code), "")
        for code in programs:
            session = await sandbox.session()
            told(await session.run(code), await after(session))
            await session.close()
        for cell in (False, True):
            session = await sandbox.session()
            await session.run("x = b'x' * (200 << 20)")
            subprocess.run([sys.executable, "-c", "x = b'x' * (130 << 20)"], check=True)  # for which there is no room
            if cell:
                told(await session.run("print(len(x))"), "")
            try:
                await session.checkpoint()
            except SessionLost as lost:
                print(lost.by_own_code)
            await session.close()

asyncio.run(main())
"""


@pytest.fixture
def starved() -> Iterator[Path]:
    """A cgroup with 300 MiB, of either version."""
    try:
        above = {
            mount.split()[2]: Path(mount.split()[1])
            for mount in Path("/proc/mounts").read_text().splitlines()
            if mount.split()[2] == "cgroup2"
            or (mount.split()[2] == "cgroup" and "memory" in mount.split()[3].split(","))
        }
        parent, limit = (
            (above["cgroup"], "memory.limit_in_bytes") if "cgroup" in above else (above["cgroup2"], "memory.max")
        )
        folder = parent / f"retcon-test-{os.getpid()}"
        folder.mkdir()
    except (OSError, KeyError) as error:
        pytest.skip(f"no memory cgroup may be made here: {error!r}")
    try:
        try:
            (folder / limit).write_text(str(300 << 20))
        except OSError as error:
            pytest.skip(f"no memory cgroup may be made here: {error}")
        yield folder
    finally:
        folder.rmdir()


@contained_by(*ALL)
@pytest.mark.parametrize(
    "before",
    [
        "print('Tool call success')",
        "import os\nos._exit = print",
        "import os, sys\nos.write = lambda fd, data: len(data)",
        "import sys\nclass Out:\n    write = print\n    def flush(self): os._exit(0)\nimport os\nsys.stdout = sys.stderr = Out()",
        "import os, sys\nsys.excepthook = lambda *given: os._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)",
        "import traceback, os\ntraceback.TracebackException = lambda *a, **k: os._exit(0)",
        "import linecache\nlinecache.cache = None",
        "import builtins\nkept = {'__build_class__', 'ZeroDivisionError', '__import__'}\nall = vars(builtins)\n"
        "for name in set(all) - kept: all.pop(name)",
        "import threading, os, sys\nmain = threading.main_thread()\n"
        "def end():\n    while not sys.is_finalizing():\n        if main.name == 'over': os._exit(0)\nthreading.Thread(target=end, daemon=True).start()",
        "import gc\ngc.disable()\nfor o in gc.get_objects():\n    if type(o) is dict and o.get('raised') == '': o['raised'] = 'x'",
    ],
    ids=["says", "_exit", "write", "streams", "hook", "atexit", "traceback", "linecache", "builtins", "thread", "gc"],
)
def test_an_uncaught_error_stays_an_error(jail: Jail, before: str) -> None:
    result = jail.attack(before + "\n1 / 0")
    assert (result.status, result.error_type) == ("error", "ZeroDivisionError"), result
    assert result.value is None


@contained_by(*ALL)
def test_an_error_whose_text_ends_the_process_stays_an_error(jail: Jail) -> None:
    result = jail.attack("import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\nraise E")
    assert (result.status, result.error_type, result.stderr) == ("error", "E", "E\n")


@contained_by(*ALL)
def test_what_was_printed_is_kept_of_a_program_that_deletes_its_streams(jail: Jail) -> None:
    result = jail.attack("import sys\nprint(1)\ndel sys.stdout")
    assert (result.status, result.stdout) == ("ok", "1\n"), result
    result = jail.attack("import sys\nprint(1)\ndel sys.stdout, sys.stderr\n1 / 0")
    assert (result.error_type, result.stdout) == ("ZeroDivisionError", "1\n"), result
    assert result.stderr.startswith("Traceback")


@contained_by(*ALL)
def test_an_end_by_code_counts_by_its_code(jail: Jail) -> None:
    result = jail.attack("import os\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    os._exit(0)")
    assert (result.status, result.exit_code, result.error_type) == ("ok", 0, None)  # it was caught: as python would say
    assert jail.attack("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise SystemExit(3)").exit_code == 3


@contained_by(*ALL)
@pytest.mark.parametrize("ways", ["range(3, 256)", "opened()"], ids=["descriptors", "/proc/self/fd"])
def test_the_record_cannot_be_forged_by_writing(jail: Jail, ways: str) -> None:
    result = jail.attack(f"""
        import ctypes, os
        def opened():
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again: /proc/self is ours
            for fd in range(256):
                for flags in (os.O_WRONLY, os.O_RDWR | os.O_NONBLOCK):
                    try:
                        yield os.open(f'/proc/self/fd/{{fd}}', flags)
                    except OSError:
                        pass
        for fd in {ways}:
            for text in (b'ok', b'\\0=9', b'{{"status": "ok"}}', b'x' * 4000):
                try:
                    os.write(fd, text)
                except OSError:
                    pass
        1 / 0
    """)
    assert (result.status, result.value) == ("error", None)
    assert result.error_type == "ZeroDivisionError"


@contained_by(*ALL)
def test_even_the_token_makes_no_failure_a_success(jail: Jail) -> None:
    result = jail.attack("""
        import os, sys
        frame = sys._getframe()
        while frame is not None:
            token = frame.f_locals.get('token', b'')
            if token:
                for body in (b'\\0=9', b'\\0', b'\\1nothing ran'):
                    os.write(3, token + body + token)
            frame = frame.f_back
        1 / 0
    """)
    assert (result.status, result.exit_code) == ("error", 1)


@contained_by(*ALL)
def test_the_pipe_of_the_record_cannot_be_emptied(jail: Jail) -> None:
    result = jail.attack("""
        import ctypes, os, threading
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        def drain():
            fd = os.open('/proc/self/fd/3', os.O_RDONLY)
            while True:
                os.read(fd, 1 << 16)
        for _ in range(4):
            threading.Thread(target=drain, daemon=True).start()
        raise KeyError
    """)
    assert (result.status, result.exit_code) == ("error", 1)  # at worst its name is lost


@contained_by(*ALL)
def test_closing_every_descriptor_is_the_programs_own_loss(jail: Jail) -> None:
    assert jail.attack("import os\nos.closerange(0, 256)").status == "ok"
    result = jail.attack("import os\nos.closerange(0, 256)\n1 / 0")
    assert (result.status, result.exit_code) == ("error", 1)


@contained_by(NAMESPACES)
def test_a_fork_of_the_program_has_no_say_in_its_result(jail: Jail) -> None:
    result = jail.attack("import os\nif os.fork() == 0:\n    raise ValueError\nos.wait()\n'mine'")
    assert (result.status, result.value) == ("ok", "'mine'")
    result = jail.attack("import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n    1 / 0")
    assert (result.status, result.error_type) == ("error", "ZeroDivisionError")


@contained_by(*ALL)
def test_any_bytes_may_come_out(jail: Jail) -> None:
    result = jail.attack("import sys\nsys.stdout.buffer.write(bytes(range(256)))\n'\\ud800\\0'")
    assert result.status == "ok"
    assert result.stdout == bytes(range(256)).decode("utf-8", "replace")
    assert result.value == repr("\ud800\0")
    assert jail.attack("raise ValueError('\\ud800\\0')").error_type == "ValueError"


# to the last byte, with what is small; not one in another, with which Python 3.13 crashes of itself
TAKE = "held = [None] * 10**6\nfor n in range(10**6): held[n] = (n,)\n"
HOLD = f"try:\n    exec({TAKE!r})\nexcept MemoryError: pass\n"


@contained_by(*ALL)
@pytest.mark.parametrize("small", ["(n,)", "[n]", "{}", "str(n)"])
@pytest.mark.parametrize("code", [TAKE, f"def take():\n    exec({TAKE!r})\ntake()"], ids=["module", "function"])
def test_taking_the_last_byte_is_over_the_limit_and_no_other_end(jail: Jail, code: str, small: str) -> None:
    result = jail.attack(code.replace("(n,)", small), memory_mb=32, cpu_seconds=20)
    assert (result.status, result.error_type, result.exit_code) == ("limit", "MemoryError", 1), result
    assert result.stderr.endswith("MemoryError\n"), result


@contained_by(*ALL)
@pytest.mark.parametrize(
    ("end", "status", "error_type", "code"),
    [
        ("", "ok", None, 0),
        ("raise SystemExit", "ok", None, 0),
        ("raise leave", "error", "SystemExit", 3),
        ("raise ready", "error", "KeyError", 1),
    ],
)
def test_a_program_that_holds_all_of_its_memory_ends_as_it_does(
    jail: Jail, end: str, status: str, error_type: str | None, code: int
) -> None:
    result = jail.attack(
        f"ready, leave = KeyError(1), SystemExit(3)\nprint('out')\n{HOLD}{end}", memory_mb=32, cpu_seconds=20
    )
    assert (result.status, result.error_type, result.exit_code) == (status, error_type, code), result
    assert result.stdout == "out\n"


@contained_by(*ALL)
def test_a_cell_that_takes_the_last_byte_is_over_the_limit_and_its_session_goes_on(jail: Jail) -> None:
    session = jail.session(memory_mb=32)
    over = session.run(f"def take():\n    exec({TAKE!r})\ntake()")
    assert (over.status, over.error_type) == ("limit", "MemoryError"), over
    assert session.run("print(1)").stdout == "1\n"
    held = session.run(HOLD)
    assert (held.status, held.error_type) == ("ok", None), held
    session.close()


@contained_by(*ALL)
@pytest.mark.parametrize("size", [10**5, 10**7])
def test_the_input_is_the_programs_own(jail: Jail, size: int) -> None:
    result = jail.run("import sys\nprint(len(sys.stdin.read()))\nprint(repr(sys.stdin.read()))", stdin="é" * size)
    assert result.stdout == f"{size}\n''\n"


@pytest.mark.parametrize("tier", ["namespaces", "landlock", "rlimits"])
def test_what_the_kernel_ends_for_want_of_memory_is_not_to_blame(starved: Path, tier: str) -> None:
    """Nor is a session that it ends while that rests; and what ends itself by the same signal is."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", STARVED, tier, str(starved)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "SandboxUnavailable" in ran.stderr:
        pytest.skip(f"not on this machine: {ran.stderr[-300:]}")
    itself, kernel, after, *cells, rested, cell, over = ran.stdout.splitlines()
    assert itself == "error|SIGKILL|SIGKILL: killed by signal 9|"
    assert kernel.startswith("infrastructure|None|"), ran.stdout + ran.stderr
    assert "out of memory" in kernel
    assert after == "ok|None|on|"
    ended = "infrastructure|None|the kernel ended the program: the machine was out of memory"
    assert cells == [f"{itself}its own code", f"{ended}|a fault", after]
    assert cell.startswith("infrastructure|None|"), ran.stdout + ran.stderr
    assert "out of memory" in cell
    assert (rested, over) == ("False", "False")
