"""Attacks by and on processes: none outlives its call, and none that is not the call's is touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail import ALL, CALL, CONTAINED, LANDLOCK, NAMESPACES, RLIMITS, Jail, contained_by
from retcon.core.errors import SandboxUnavailable, SandboxWarning
from retcon.sandbox.jail.confine.users import OVERFLOW_UID, PASSING
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result, Tier

# Outside the tier namespaces a call cannot start a process at all; see docs/sandbox/sandbox.md for the price.


def marked(mark: str) -> list[int]:
    """Processes of the machine whose command line has `mark`, found by it although they changed their ids."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[str]]:
    """A process of the user who runs the sandbox, which says so when a signal comes that it can see."""
    code = (
        "import signal\nall = signal.valid_signals()\nsignal.pthread_sigmask(signal.SIG_BLOCK, all)\n"
        "print('up', flush=True)\nprint('got', int(signal.sigwait(all)), flush=True)"
    )
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "up\n"
    yield made
    made.kill()
    made.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="others' calls all run as themselves")
@pytest.mark.parametrize("tier", [LANDLOCK, RLIMITS])  # others have ids of their own
@pytest.mark.parametrize("uid", [OVERFLOW_UID, PASSING[0]])
def test_calls_that_share_a_user_do_not_end_each_other(tier: Tier, uid: int) -> None:
    """As workers do, or may, in a container that has few ids."""

    async def main() -> tuple[Result, Result]:
        async with SandboxPool(workers=1, tier=tier, uids=range(uid, uid + 1)) as pool:
            session = await pool.session()
            pid = (await session.run("import os\nos.getpid()")).value
            return await pool.run(f"import os\nos.kill({pid}, 9)"), await session.run("os.getuid()")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxWarning)
            attack, victim = asyncio.run(main())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert attack.error_type == "PermissionError"
    assert (victim.status, victim.value) == ("ok", str(uid))


@contained_by(*ALL)
def test_a_fork_bomb_is_bounded_and_gone(jail: Jail) -> None:
    code = """
        import os, time
        for n in range(1000):
            try:
                pid = os.fork()
            except OSError:
                break
            if pid == 0:
                time.sleep(60)
        print(n)
    """
    for _ in range(2):  # had the first ones stayed, there would be no room
        result = jail.attack(code, processes=8)
        assert result.status == "ok"
        assert (1 if jail.tier == NAMESPACES else 0) <= int(result.stdout) < 20


@contained_by(NAMESPACES)
def test_processes_that_fork_and_end_at_once_cannot_outrun_the_sweep(jail: Jail) -> None:
    result = jail.attack("""
        import os, sys
        if os.fork() == 0:
            os.setsid()
            while True:
                if os.fork():
                    os._exit(0)
    """)
    assert result.status == "ok"
    assert (
        jail.run(
            "import os\nprint([int(p) for p in os.listdir('/proc') if p.isdigit() and p != str(os.getpid())])"
        ).stdout
        == "[1]\n"
    )


@contained_by(NAMESPACES)
@pytest.mark.parametrize("holds", [True, False], ids=["holds the pipes", "closes them"])
def test_a_daemon_is_gone_with_its_call(jail: Jail, holds: bool) -> None:
    mark = f"daemon-{os.getpid()}-{holds}"
    result = jail.attack(f"""
        import os, subprocess, sys
        pipes = None if {holds} else subprocess.DEVNULL
        for _ in range(3):
            subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}], start_new_session=True,
                             stdout=pipes, stderr=pipes)
        print('left')
    """)
    assert (result.status, result.stdout) == ("ok", "left\n")
    assert not marked(mark)


@contained_by(LANDLOCK, RLIMITS)
@pytest.mark.parametrize(
    "work",
    [
        "os.fork()", "os.forkpty()", "subprocess.run(['true'])", "os.posix_spawn('/bin/true', ['true'], {})",
        "os.system('true') and 1 / 0", "multiprocessing.get_context('fork').Process(target=print).start()",
    ],
)  # fmt: skip
def test_no_process_is_started(jail: Jail, work: str) -> None:
    result = jail.attack(f"import multiprocessing, os, subprocess\n{work}\nprint('started', os.getpid())")
    assert (result.status, result.stdout) == ("error", ""), result


@contained_by(LANDLOCK, RLIMITS)
def test_no_process_is_started_by_system_call(jail: Jail) -> None:
    numbers = "(57, 58, 56, 435)" if os.uname().machine == "x86_64" else "(220, 435)"
    result = jail.attack(CALL + f"print({{call(n, 17, 0, 0, 0, 0) for n in {numbers}}} <= {{'EPERM', 'ENOSYS'}})")
    assert result.stdout == "True\n"


@contained_by(*ALL)
def test_a_bomb_of_threads_is_bounded(jail: Jail) -> None:
    if jail.tier != NAMESPACES and os.getuid() != 0:
        pytest.skip(
            "the kernel counts all of this user's threads together there: the bound is not the call's own (docs)"
        )
    result = jail.attack(
        """
        import threading, time
        made = 0
        try:
            while made < 1000:
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                made += 1
        except RuntimeError:
            pass
        print(made)
        """,
        processes=16,
    )
    assert result.status == "ok"
    assert int(result.stdout) <= 16


@contained_by(*ALL)
@pytest.mark.parametrize("how", ["kill", "killpg", "pidfd", "sigqueue", "tgkill"])
def test_no_signal_reaches_a_process_of_the_machine(jail: Jail, bystander: subprocess.Popen[str], how: str) -> None:
    numbers = {"x86_64": (129, 234), "aarch64": (138, 131)}[os.uname().machine]
    ways = {
        "kill": "os.kill(pid, number)",
        "killpg": "assert os.getpgid(pid); os.killpg(os.getpgid(pid), number)",
        "pidfd": "signal.pidfd_send_signal(os.pidfd_open(pid), number)",
        "sigqueue": f"assert call({numbers[0]}, pid, number, (ctypes.c_char * 128)(number)) == 'ok'",
        "tgkill": f"assert call({numbers[1]}, pid, pid, number) == 'ok'",
    }
    result = jail.attack(
        CALL
        + f"""
import os, signal
for pid in ({bystander.pid}, {os.getpid()}, {jail.pid}, os.getppid(), 1):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        try:
            {ways[how]}
            print(pid)
        except (OSError, AssertionError):
            pass
"""
    )
    assert result.status == "ok", result
    reached = {int(line) for line in result.stdout.split()}
    assert reached <= ({0, 1} if jail.tier == NAMESPACES else set())  # process 1 is its own there, and ignores it
    bystander.send_signal(signal.SIGUSR1)
    assert bystander.stdout is not None
    assert bystander.stdout.readline() == f"got {int(signal.SIGUSR1)}\n"


@contained_by(*ALL)
def test_a_call_cannot_make_its_failure_a_fault_of_the_sandbox(jail: Jail) -> None:
    result = jail.attack("""
        import os, signal
        for pid in (os.getppid(), 1, -1, 0):
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGXCPU, signal.SIGSEGV, signal.SIGTERM):
                try:
                    if pid > 0 or number == signal.SIGSTOP and pid == -1:
                        os.kill(pid, number)
                except OSError:
                    pass
        raise ValueError
    """)
    assert (result.status, result.error_type) == ("error", "ValueError")


@contained_by(*ALL)
def test_the_worker_cannot_be_traced_read_or_slowed(jail: Jail) -> None:
    by_machine = {
        # ptrace attach and seize, process_vm_readv, kcmp, setpriority, sched_setaffinity, sched_setparam, ioprio_set
        "x86_64": "(101, 16), (101, 0x4206), (310, 0), (312, 0), (141, 0), (203, 0), (142, 0), (251, 1)",
        "aarch64": "(117, 16), (117, 0x4206), (270, 0), (272, 0), (140, 0), (122, 0), (118, 0), (30, 1)",
    }[os.uname().machine]
    state = "import os\nprint(os.nice(0), os.sched_getaffinity(0))"
    before = jail.attack(state).stdout
    result = jail.attack(
        CALL
        + f"""
import os, resource
parent = os.getppid()
buffer = (ctypes.c_ulong * 16)(1)
for number, first in ({by_machine}):
    arguments = (parent, 8, buffer) if number in (203, 122, 142, 118) else (first, parent, 19, 0)
    if number in (310, 270, 312, 272):
        arguments = (parent, os.getpid(), 0, 0, 0, 0)
    print(call(number, *arguments))
for path in ('mem', 'maps', 'environ', 'fd', 'fdinfo', 'root', 'cwd', 'exe', 'oom_score_adj', 'clear_refs', 'uid_map'):
    try:
        os.open(f'/proc/{{parent}}/{{path}}', os.O_RDWR if '_' in path or path == 'mem' else os.O_RDONLY)
        print(path)
    except OSError:
        pass
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):
    try:
        resource.prlimit(parent, kind, (0, 0))
        print('limited')
    except OSError:
        pass
"""
    )
    seen = result.stdout.split()
    if jail.tier == RLIMITS:  # where only root may enter Python's folder, calls may read all files there (docs)
        seen = [line for line in seen if line not in ("fd", "fdinfo")]
    assert seen == ["EPERM"] * 8, result
    assert jail.attack(state).stdout == before


@contained_by(*ALL)
def test_a_call_cannot_ask_out_of_ending_with_its_worker(jail: Jail) -> None:
    number = {"x86_64": 157, "aarch64": 167}[os.uname().machine]
    code = CALL + f"print(call({number}, 1, 0, 0, 0, 0), call({number}, 1, 15, 0, 0, 0), call({number}, 1, 9, 0, 0, 0))"
    assert jail.attack(code).stdout == "EPERM EPERM ok\n"


@contained_by(*ALL)
def test_what_runs_when_the_worker_is_killed_ends_with_it(jail: Jail) -> None:
    own = Jail(jail.tier) if jail.tier != RLIMITS else None
    if own is None:
        pytest.skip("as landlock, where it is tried")
    mark = f"orphan-{os.getpid()}-{jail.tier}"
    try:
        result = own.run(
            f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])",
            wall_seconds=0.5,
        )
        assert result.status == "timeout"
    finally:
        own.close()
    assert not marked(mark)


@contained_by(*CONTAINED)
def test_processes_of_the_machine_are_not_seen(jail: Jail, bystander: subprocess.Popen[str]) -> None:
    result = jail.attack(f"""
        import glob, os
        print(os.path.exists('/proc/{bystander.pid}/cmdline') and open('/proc/{bystander.pid}/cmdline').read())
        print(len(glob.glob('/proc/[0-9]*')))
    """)
    if jail.tier == NAMESPACES:
        assert result.stdout.split()[-1] == "2"
    assert "sigwait" not in result.stdout
    assert result.status == "ok" or result.error_type == "PermissionError"
