"""Attacks on the limits: time, memory, disk and output stay bounded whatever the program does."""

from __future__ import annotations

import signal
import sys

import pytest

from jail import ALL, NAMESPACES, RLIMITS, Jail, contained_by


@contained_by(*ALL)
def test_no_limit_can_be_raised(jail: Jail) -> None:
    result = jail.attack("""
        import resource
        for name in ('CPU', 'AS', 'FSIZE', 'NPROC', 'NOFILE', 'CORE'):
            kind = getattr(resource, 'RLIMIT_' + name)
            soft, hard = resource.getrlimit(kind)
            for wanted in ((hard + 1, hard + 1), (-1, -1)):
                for change in (resource.setrlimit, lambda *given: resource.prlimit(0, *given)):
                    try:
                        change(kind, wanted)
                        if resource.getrlimit(kind) != (soft, hard):
                            print(name, 'raised')
                    except (ValueError, OSError):
                        pass
        print('held')
    """)
    assert result.stdout == "held\n", result


@contained_by(*ALL)
def test_signals_cannot_stop_the_cpu_clock(jail: Jail) -> None:
    result = jail.attack(
        """
        import signal
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print('on', flush=True)
        while True:
            pass
        """,
        cpu_seconds=1,
    )
    assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "on\n")


@contained_by(*ALL)
def test_signals_cannot_stop_the_wall_clock(jail: Jail) -> None:
    result = jail.attack(
        """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.alarm(0)
        while True:
            time.sleep(60)
        """,
        wall_seconds=0.2,
    )
    assert (result.status, result.exit_code) == ("timeout", -signal.SIGKILL)


@contained_by(*ALL)
def test_a_call_that_stops_itself_ends_at_the_wall_clock(jail: Jail) -> None:
    result = jail.attack("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", wall_seconds=0.2)
    assert (result.status, result.error_type) == ("timeout", "TimeoutError")


@contained_by(NAMESPACES)
@pytest.mark.parametrize(
    "code",
    ["import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", "pow(7, 10**9)", "'x' in iter(int, 1)"],
    ids=["regex", "huge ints", "endless iterator"],
)
def test_work_inside_one_call_of_c_is_stopped(jail: Jail, code: str) -> None:
    result = jail.attack(code, cpu_seconds=1, memory_mb=256)
    assert result.status in ("timeout", "limit")


@contained_by(*ALL)
@pytest.mark.parametrize(
    "code",
    ["x = 'a' * 10**10", "x = list(range(10**9))", "import mmap\nmmap.mmap(-1, 10**10)", "x = 2\nwhile 1: x *= x"],
)
def test_a_memory_bomb_stays_in_its_limit(jail: Jail, code: str) -> None:
    result = jail.attack(code, memory_mb=64, cpu_seconds=1)
    assert result.status in ("limit", "error", "timeout")
    assert result.peak_memory < 150 << 20


@contained_by(NAMESPACES)
@pytest.mark.parametrize("kind", ["private", "shared"])
def test_memory_is_bounded_over_all_processes_of_a_call(jail: Jail, kind: str) -> None:
    """Each stays below the limit of one, together they do not; what they share counts for each."""
    make = "bytearray(range(256)) * (15 << 12)" if kind == "private" else "mmap.mmap(fd, 15 << 20); sum(x[::4096])"
    result = jail.attack(
        f"""
        import mmap, os, time
        fd = os.open('x', os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 15 << 20)
        for _ in range(12):
            if os.fork() == 0:
                x = {make}
                time.sleep(60)
        time.sleep(60)
        """,
        memory_mb=128,
        wall_seconds=20,
    )
    assert (result.status, result.error_type) == ("limit", "MemoryError")
    assert result.stderr == "MemoryError: its processes held more than 128 MiB together\n"


@contained_by(*ALL)
def test_memory_cannot_hide_in_files_without_a_name(jail: Jail) -> None:
    assert jail.attack("import os\nos.memfd_create('x')").error_type == "OSError"


@contained_by(*ALL)
def test_memory_cannot_hide_in_sockets(jail: Jail) -> None:
    result = jail.attack("""
        import socket
        held, sent = [], 0
        try:
            while True:
                held.append(socket.socketpair())
                for end in held[-1]:
                    end.setblocking(False)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
                    try:
                        while True:
                            sent += end.send(bytes(1 << 16))
                    except BlockingIOError:
                        pass
        except OSError:
            pass
        print(len(held), sent >> 20)
    """)
    pairs, mib = map(int, result.stdout.split())
    assert pairs > 20
    assert mib < pairs  # each of the two ends keeps less than the usual 208 KiB


@contained_by(*ALL)
def test_one_file_is_bounded(jail: Jail) -> None:
    result = jail.attack("open('big', 'wb').write(bytes(10**8))", file_mb=1)
    assert (result.status, result.error_type) == ("error", "OSError")


@contained_by(*ALL)
def test_a_flood_of_the_disk_in_many_files_is_bounded(jail: Jail) -> None:
    result = jail.attack(
        """
        import time
        block, written = bytes(1 << 20), 0
        for n in range(2000):
            with open(str(n), 'wb') as file:
                written += file.write(block)
            time.sleep(0.002)
        print('done')
        """,
        wall_seconds=60,
        cpu_seconds=30,
    )
    assert result.error_type == "OSError"
    assert result.status == ("error" if jail.tier == NAMESPACES else "limit")  # the kernel's answer, or the worker's
    assert result.stdout == ""


@contained_by(*ALL)
def test_a_flood_of_empty_files_is_bounded(jail: Jail) -> None:
    result = jail.attack(
        "import os\nfor n in range(10**7):\n    os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))",
        cpu_seconds=60,
        wall_seconds=60,
    )
    assert result.error_type == "OSError"
    assert result.status == ("error" if jail.tier == NAMESPACES else "limit")


@contained_by(NAMESPACES)
def test_a_flood_of_files_that_are_deleted_but_open_is_bounded(jail: Jail) -> None:
    result = jail.attack(
        """
        import mmap, os
        kept = []
        for n in range(200):
            with open('x', 'wb+') as file:
                file.write(bytes(1 << 20))
                file.flush()
                kept.append(mmap.mmap(file.fileno(), 4096))
            os.unlink('x')
        """,
        file_mb=2,
    )
    assert (result.status, result.error_type) == ("error", "OSError")
    assert jail.attack("open('x', 'wb').write(bytes(40 << 20))", file_mb=50).status == "ok"  # all is free again


@contained_by(NAMESPACES)
@pytest.mark.parametrize("place", ["..", "/dev/shm", "."])
def test_every_writable_place_has_the_same_bound(jail: Jail, place: str) -> None:
    result = jail.attack(f"for n in range(80): open({place!r} + f'/{{n}}', 'wb').write(bytes(1 << 20))")
    assert (result.status, result.error_type) == ("error", "OSError")


@contained_by(*ALL)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut(jail: Jail, stream: str) -> None:
    code = f"import sys\nfor _ in range(20): sys.{stream}.write('x' * 10**6)\nsys.{stream}.write('end')"
    result = jail.attack(code, output_bytes=1000, cpu_seconds=60, wall_seconds=120)
    text = getattr(result, stream)
    assert result.status == "ok"
    assert len(text) < 1100
    assert "[19999003 bytes cut]" in text
    assert text.endswith("end")


@contained_by(*ALL)
def test_descriptors_are_bounded(jail: Jail) -> None:
    result = jail.attack("import os\nwhile True: os.dup(1)", open_files=32)
    assert (result.status, result.error_type) == ("error", "OSError")


@contained_by(RLIMITS)
@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("def f(): f()\nf()", {"RecursionError"}),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", {"SIGSEGV", "MemoryError", "SystemError"}),
        (
            "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**5): x = [x]\nrepr(x)",
            {"SIGSEGV" if sys.version_info < (3, 12) else "RecursionError"},  # which has a limit of its own for C
        ),
        ("int('9' * 10**5)", {"ValueError"}),
        ("import ctypes\nctypes.string_at(0)", {"SIGSEGV"}),
        ("import os\nos.kill(os.getpid(), 9)", {"SIGKILL"}),
        ("import faulthandler\nfaulthandler._sigabrt()", {"SIGABRT"}),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", {"E"}),
    ],
)
def test_a_crash_is_a_failure_with_a_name(jail: Jail, code: str, error_type: set[str]) -> None:
    result = jail.attack(code, memory_mb=64, cpu_seconds=20)
    assert result.status in ("error", "limit")
    assert result.error_type in error_type
