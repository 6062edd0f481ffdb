"""What untrusted code tries, and the evidence that it gets nothing by it. Run in the best tier the machine has.

Each attack is real: where one needs a victim (a secret, a listener, a file), the test makes it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Result

Work = Callable[[SandboxPool], Awaitable[Result]]


def using(work: Work, limits: Limits | None = None) -> Result:
    async def main() -> Result:
        async with SandboxPool(workers=1, limits=limits) as pool:
            return await work(pool)

    return asyncio.run(main())


def attack(code: str, **limits: float) -> Result:
    """Run the attack, then see that the same worker still answers."""

    async def work(pool: SandboxPool) -> Result:
        worker = pool.worker.pid
        result = await pool.run(code)
        assert (await pool.run("print('alive')")).stdout == "alive\n"
        assert pool.worker.pid == worker
        return result

    return using(work, Limits(**limits))  # type: ignore[arg-type]


def need(fact: str) -> None:
    async def main() -> bool:
        async with SandboxPool(workers=1) as pool:
            return bool(getattr(pool.worker, fact))

    if not asyncio.run(main()):
        pytest.skip(f"this machine grants no isolation of {fact}")


def test_secrets_of_the_environment_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETCON_TEST_SECRET", "hunter2")
    code = (
        "import glob, os\n"
        "print(os.environ)\n"
        "for path in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try:\n        print(open(path).read())\n"
        "    except OSError:\n        pass"
    )
    need("files")
    result = attack(code)
    assert result.status == "ok"
    assert "PYTHONHASHSEED" in result.stdout
    assert "hunter2" not in result.stdout


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])  # one that is covered, one that is not
def test_nothing_outside_the_scratch_folder_can_be_written(place: str) -> None:
    need("files")
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        victim = folder / "victim"
        victim.write_text("whole")
        folder.chmod(0o777)
        victim.chmod(0o666)
        code = (
            f"for path in ({str(victim)!r}, {str(folder / 'new')!r}, '/etc/new', '/new'):\n"
            "    try:\n        open(path, 'w').write('broken')\n        print('wrote', path)\n"
            "    except OSError as error:\n        print(type(error).__name__)"
        )
        result = attack(code)
        assert "wrote" not in result.stdout
        assert len(result.stdout.splitlines()) == 4
        assert victim.read_text() == "whole"
        assert not (folder / "new").exists()


def test_the_network_cannot_be_reached() -> None:
    need("network")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        result = attack(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)")
        assert (result.status, result.error_type) == ("error", "OSError")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_fork_bomb_is_bounded_and_gone() -> None:
    code = (
        "import os, time\nfor n in range(1000):\n"
        "    try:\n        pid = os.fork()\n    except OSError:\n        break\n"
        "    if pid == 0:\n        time.sleep(60)\nprint(n)\n"
    )

    async def work(pool: SandboxPool) -> Result:
        limits = Limits(processes=8)
        if pool.tier == "rlimits" and os.getuid() == 0 and not pool.worker.own_user:
            pytest.skip("this machine grants no user but root, whose processes the kernel does not count")
        first = await pool.run(code, limits=limits)
        assert 1 <= int(first.stdout) < 500
        return await pool.run(code, limits=limits)

    result = using(work)
    assert result.status == "ok"
    assert 1 <= int(result.stdout) < 500  # had the first ones stayed, there would be no room


@pytest.mark.parametrize(
    "code",
    ["x = 'a' * 10**10", "x = list(range(10**9))", "import mmap\nmmap.mmap(-1, 10**10)", "x = 2\nwhile 1: x *= x"],
)
def test_a_memory_bomb_stays_in_its_limit(code: str) -> None:
    result = attack(code, memory_mb=64, cpu_seconds=1)
    assert result.status in ("limit", "error", "timeout")
    assert result.peak_memory < 150 << 20


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut(stream: str) -> None:
    code = f"import sys\nfor _ in range(20000): sys.{stream}.write('x' * 1000)\nsys.{stream}.write('end')"
    result = attack(code, output_bytes=1000)
    text = getattr(result, stream)
    assert result.status == "ok"
    assert len(text) < 1100
    assert "[19999003 bytes cut]" in text
    assert text.endswith("end")


def test_a_daemon_does_not_outlive_its_call() -> None:
    leave = (
        "import os, time\nreads, writes = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.write(writes, str(os.getpid()).encode())\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "print(os.read(reads, 20).decode())"
    )

    async def work(pool: SandboxPool) -> Result:
        worker = pool.worker.pid
        daemon = await pool.run(leave)
        assert pool.worker.pid == worker  # it is the worker that ended it, not its own end
        return await pool.run(f"import os\nos.kill({int(daemon.stdout)}, 0)")

    result = using(work)
    assert (result.status, result.error_type) == ("error", "ProcessLookupError")


def test_a_snippet_cannot_raise_its_limits() -> None:
    code = (
        "import resource\n"
        "for name in ('CPU', 'AS', 'FSIZE', 'NPROC', 'NOFILE', 'CORE'):\n"
        "    kind = getattr(resource, 'RLIMIT_' + name)\n"
        "    soft, hard = resource.getrlimit(kind)\n"
        "    try:\n        resource.setrlimit(kind, (hard + 1, hard + 1))\n        print(name, 'raised')\n"
        "    except (ValueError, OSError):\n        print(name, 'held')"
    )
    result = attack(code)
    assert result.stdout.count("held") == 6, result


def test_signals_cannot_stop_the_cpu_clock() -> None:
    code = (
        "import signal\n"
        "for number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGPROF, signal.SIGTERM):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "signal.alarm(0)\nsignal.setitimer(signal.ITIMER_PROF, 0)\nprint('on', flush=True)\nwhile True: pass"
    )
    result = attack(code, cpu_seconds=1)
    assert (result.status, result.error_type, result.stdout) == ("timeout", "TimeoutError", "on\n")


def test_signals_cannot_stop_the_wall_clock() -> None:
    code = (
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "while True:\n    time.sleep(60)"
    )
    result = attack(code, wall_seconds=0.2)
    assert (result.status, result.exit_code) == ("timeout", -signal.SIGKILL)


def test_the_result_cannot_be_forged_by_writing_to_every_descriptor() -> None:
    code = (
        "import os\n"
        "for fd in range(3, 256):\n"
        "    for text in (b'ok', b'\\0=9', b'{\"status\": \"ok\"}', b'x' * 40000):\n"
        "        try:\n            os.write(fd, text)\n        except OSError:\n            pass\n"
        "1 / 0"
    )
    result = attack(code)
    assert (result.status, result.error_type, result.value) == ("error", "ZeroDivisionError", None)


def test_closing_every_descriptor_is_the_snippets_own_loss() -> None:
    assert attack("import os\nos.closerange(0, 256)").status == "ok"
    result = attack("import os\nos.closerange(0, 256)\n1 / 0")
    assert (result.status, result.exit_code) == ("error", 1)


def test_a_snippet_cannot_make_its_failure_a_fault_of_the_sandbox() -> None:
    need("files")
    code = (
        "import os, signal\n"
        "for pid in (os.getppid(), 1, -1):\n"
        "    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV):\n"
        "        try:\n            os.kill(pid, number)\n        except OSError:\n            pass\n"
        "raise ValueError"
    )
    result = attack(code)
    assert (result.status, result.error_type) == ("error", "ValueError")


def test_exit_after_an_error_counts_by_its_code() -> None:
    result = attack("import os\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    os._exit(0)")
    assert (result.status, result.exit_code, result.error_type) == ("ok", 0, None)
    assert attack("import os\nos._exit = print\n1 / 0").error_type == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        ("def f(): f()\nf()", "RecursionError"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("import os\nos.kill(os.getpid(), 9)", "SIGKILL"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E"),
        ("import sys, traceback\nsys.stderr = sys.stdout = None\ntraceback.TracebackException = None\n1 / 0", None),
    ],
)
def test_a_crash_is_an_error_with_a_name(code: str, error_type: str | None) -> None:
    result = attack(code)
    assert result.status == "error"
    assert error_type in (None, result.error_type)


def test_any_bytes_may_come_out() -> None:
    result = attack("import sys\nsys.stdout.buffer.write(bytes(range(256)))\n'\\ud800\\0'")
    assert result.status == "ok"
    assert result.stdout == bytes(range(256)).decode("utf-8", "replace")
    assert result.value == repr("\ud800\0")
    assert attack("raise ValueError('\\ud800\\0')").error_type == "ValueError"


def test_the_scratch_folder_is_bounded_and_emptied() -> None:
    big = attack("open('big', 'wb').write(bytes(10**8))", file_mb=1)
    assert (big.status, big.error_type) == ("error", "OSError")

    async def work(pool: SandboxPool) -> Result:
        stubborn = (
            "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.symlink('/', 'a/root')\nos.chmod('a', 0)"
        )
        assert (await pool.run(stubborn)).status == "ok"
        return await pool.run("import os\nprint(os.listdir())")

    assert using(work).stdout == "[]\n"


def test_root_and_capabilities_are_gone() -> None:
    need("files")
    code = (
        "print([line.split()[1] for line in open('/proc/self/status') if line[:6] in ('CapEff', 'CapPrm', 'NoNewP')])"
    )
    assert attack(code).stdout == f"['{'0' * 16}', '{'0' * 16}', '1']\n"
    if os.getuid() == 0:
        assert attack("import os\nprint(os.getuid(), os.getgid(), os.getgroups())").stdout.startswith("65534 65534 []")


def test_nothing_is_left_when_the_pool_closes() -> None:
    async def main() -> int:
        async with SandboxPool(workers=1) as pool:
            calls = asyncio.gather(*(pool.run("import time\ntime.sleep(60)") for _ in range(3)), return_exceptions=True)
            await asyncio.sleep(0)
            pid = pool.worker.pid
        results = await calls
        assert results[0].status == "infrastructure"
        assert [type(r).__name__ for r in results[1:]] == ["SandboxUnavailable"] * 2
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(main()), 0)
