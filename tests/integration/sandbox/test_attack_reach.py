"""Attacks by calls of which some uses reach beyond the process: owners, leases and locks of files, cores, schedulers."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail import ALL, CALL, CONTAINED, LANDLOCK, NAMESPACES, PROC_IS_OPEN, RLIMITS, Jail, contained_by, landlock_abi
from retcon.sandbox.jail.confine.landlock import REFER_ABI
from retcon.sandbox.jail.confine.seccomp import ARCHITECTURES, number

MACHINE = os.uname().machine
pytestmark = pytest.mark.skipif(MACHINE not in ARCHITECTURES, reason=f"no system call filter for {MACHINE}")
NUMBERS = {
    name: number(name, MACHINE)
    for name in ("fcntl", "flock", "ioctl", "prctl", "prlimit64", "setrlimit", "ioprio_set")
    if MACHINE in ARCHITECTURES
}
SECRET = "hunter2-of-the-environment"


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the user who runs the sandbox, with a secret in its environment and its memory."""
    code = "import os\nkept = os.environ['SECRET']\nprint('up', flush=True)\ninput()"
    made = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"SECRET": SECRET},
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "up\n"
    yield made.pid
    made.communicate("\n")


@contained_by(*ALL)
def test_no_lease_owner_or_notice_is_had_on_a_descriptor(jail: Jail) -> None:
    """Even on a file of one's own; the kernel reads the lower half of a command alone."""
    result = jail.attack(
        CALL
        + f"""
import os, socket
open('x', 'w').close()
descriptors = [os.open('x', os.O_RDONLY), os.open('.', os.O_RDONLY), os.pipe()[0], socket.socketpair()[0].detach(), 0, 1]
one, owner = ctypes.byref(ctypes.c_int(1)), (ctypes.c_int * 2)(1, os.getppid())
said = set()
for fd in descriptors:
    for high in (0, 1 << 32, 0xffffffff << 32):
        for command, argument in ((1024, 1), (1026, 0x80000002), (8, os.getppid()), (8, -1), (10, 9), (15, owner)):
            said.add(call({NUMBERS["fcntl"]}, fd, command | high, argument))
        for command in (0x8901, 0x8902, 0x5452):
            said.add(call({NUMBERS["ioctl"]}, fd, command | high, one))
print(sorted(said))
"""
    )
    assert result.stdout == "['ENOTTY', 'EPERM']\n", result


@contained_by(*ALL)
def test_no_lock_for_a_whole_file_is_had_on_a_file_of_the_host(jail: Jail) -> None:
    library = sysconfig.get_paths()["stdlib"] + "/this.py"
    result = jail.attack(f"""
        import fcntl, os, struct
        fd = os.open({library!r}, os.O_RDONLY)
        for work in (
            lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
            lambda: fcntl.flock(fd, fcntl.LOCK_SH),
            lambda: fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)),
            lambda: fcntl.fcntl(fd, 38, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)),
            lambda: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        ):
            try:
                work()
                print('locked')
            except OSError:
                pass
    """)
    assert (result.status, result.stdout) == ("ok", "")
    with Path(library).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contained_by(*ALL)
def test_the_lock_that_is_left_is_what_the_page_says(jail: Jail) -> None:
    library = sysconfig.get_paths()["stdlib"] + "/this.py"
    code = f"import fcntl\nfcntl.lockf(open({library!r}), fcntl.LOCK_SH | fcntl.LOCK_NB)\nprint('held')"
    assert jail.attack(code).stdout == "held\n"


@contained_by(*ALL)
def test_a_call_cannot_make_itself_dumpable_or_open_itself_to_others(jail: Jail) -> None:
    result = jail.attack(
        CALL
        + f"""
for option, value in ((4, 1), (4, 2), (4 | 1 << 32, 1), (0x59616d61, -1), (0x59616d61, 1), (62, 1), (35, 1), (67, 1)):
    print(call({NUMBERS["prctl"]}, option, value, 0, 0, 0))
print(libc.prctl(3, 0, 0, 0, 0))
"""
    )
    *refused, dumpable = result.stdout.split()
    assert set(refused) == {"EPERM"}
    assert int(dumpable) in (0, 2)


@contained_by(*ALL)
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_CORE)[1] == 0, reason="this user's core limit cannot be raised")
@pytest.mark.parametrize("started", [False, True], ids=["itself", "a program that it becomes"])
def test_no_handler_of_core_dumps_is_started(jail: Jail, started: bool) -> None:
    """A limit of 1 byte is the one under which the kernel starts none, also of what is dumpable: it stays."""
    code = (
        CALL
        + f"""
import resource, sys
pair = (ctypes.c_ulong * 2)(0, 0)
call({NUMBERS["setrlimit"]}, 4, pair)
call({NUMBERS["prlimit64"]}, 0, 4, pair, None)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(*resource.getrlimit(resource.RLIMIT_CORE), flush=True)
ctypes.string_at(0)
"""
    )
    if started:
        code = f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    result = jail.attack(code)
    assert result.error_type == "SIGSEGV"
    assert result.stdout == "1 1\n"


@contained_by(*ALL)
def test_a_file_systems_own_commands_are_not_had(jail: Jail) -> None:
    """Attributes, generation, verity, encryption, freezing, trimming: on a file that may only be read, or of the host."""
    library = sysconfig.get_paths()["stdlib"] + "/this.py"
    commands = [0x40086602, 0x401C5820, 0x40087602, 0x40806685, 0x800C6613, 0xC0506617, 0xC0045877, 0xC0185879]
    commands += [0x40049409, 0xC0189436, 0x660C, 0x6609, 0xC020660B, 0x1260, 0x127C]
    result = jail.attack(
        CALL
        + f"""
import os
open('x', 'w').close()
zeros = (ctypes.c_char * 256)()
for fd in (os.open({library!r}, os.O_RDONLY), os.open('x', os.O_RDWR), os.open('.', os.O_RDONLY)):
    print(*{{call({NUMBERS["ioctl"]}, fd, command, zeros) for command in {commands}}})
print(os.isatty(0), os.get_blocking(1))
"""
    )
    assert result.stdout == "ENOTTY\n" * 3 + "False True\n"


@contained_by(*ALL)
def test_no_better_place_among_the_machines_processes_is_had(jail: Jail) -> None:
    result = jail.attack(
        CALL
        + f"""
import os
tries = dict(
    fifo=lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    rr=lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99)),
    nice=lambda: os.nice(-1), nice20=lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
    group=lambda: os.setpriority(os.PRIO_PGRP, 0, 19), user=lambda: os.setpriority(os.PRIO_USER, 0, 19),
    score=lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'),
    io=lambda: call({NUMBERS["ioprio_set"]}, 1, 0, 1 << 13) == 'ok' or 1 / 0,
    io_of_user=lambda: call({NUMBERS["ioprio_set"]}, 3, os.getuid(), 0) == 'ok' or 1 / 0,
)
for name, work in tries.items():
    try:
        work()
        print(name)
    except (OSError, ZeroDivisionError):
        pass
"""
    )
    assert (result.status, result.stdout) == ("ok", "")


@contained_by(*ALL)
def test_nor_by_a_program_that_it_becomes(jail: Jail) -> None:
    """Which owns its files in /proc, where the call itself does not."""
    if jail.tier == RLIMITS and landlock_abi() < REFER_ABI:
        pytest.skip("it can there (docs/sandbox/threats.md)")
    result = jail.attack("""
        import os
        os.execv("/bin/sh", ["sh", "-c", "for score in 0 1 600; do echo $score > /proc/self/oom_score_adj && echo done; done"])
    """)
    assert "done" not in result.stdout, result
    assert "cannot create" in result.stderr


@contained_by(*ALL)
@pytest.mark.parametrize("how", ["kill", "thread", "timer"])
def test_a_call_that_ends_itself_by_sigkill_is_to_blame(jail: Jail, how: str) -> None:
    create, settime = {"x86_64": (222, 223), "aarch64": (107, 110)}[MACHINE]
    ways = {
        "kill": "os.kill(os.getpid(), 9)",
        "thread": "signal.pthread_kill(threading.get_ident(), 9)",
        "timer": f"call({settime}, timer.value, 0, struct.pack('4q', 0, 0, 0, 1), None); time.sleep(60)",
    }
    result = jail.attack(
        CALL
        + f"""
import os, signal, struct, threading, time
timer = ctypes.c_int()
if call({create}, 0, struct.pack('qii48x', 0, 9, 0), ctypes.byref(timer)) == 'ok':
    {ways[how]}
os.kill(os.getpid(), 9)  # where no timer may send a signal
"""
    )
    assert (result.status, result.error_type) == ("error", "SIGKILL"), result


@contained_by(*CONTAINED)
def test_what_other_processes_hold_is_not_read(jail: Jail, bystander: int) -> None:
    result = jail.attack(f"""
        import glob, os
        names = ['environ', 'mem', 'maps', 'smaps', 'cmdline', 'status', 'fd', 'cwd/.', 'root/.', 'stack', 'syscall', 'io']
        for pid in ({bystander}, {os.getpid()}, {jail.pid}, os.getppid()):
            for name in names + ['task/' + str(pid) + '/environ', 'attr/current', 'net/tcp', 'ns', 'map_files']:
                try:
                    fd = os.open(f'/proc/{{pid}}/{{name}}', os.O_RDONLY)
                    print(pid, name, os.listdir(fd) if name in ('fd', 'ns', 'map_files') else os.read(fd, 100))
                except OSError:
                    pass
            for name in ('exe', 'cwd', 'root', 'fd/0', 'ns/pid'):
                try:
                    print(pid, name, os.readlink(f'/proc/{{pid}}/{{name}}'))
                except OSError:
                    pass
    """)
    assert result.status == "ok"
    lines = result.stdout.splitlines()
    if jail.tier == NAMESPACES:  # of process 1, its own worker, what everyone may know; its own network
        lines = [line for line in lines if line.split()[1] not in ("cmdline", "status", "attr/current", "net/tcp")]
    assert not lines
    assert SECRET not in result.stdout


@contained_by(*ALL)
def test_no_file_of_another_process_is_opened_that_reads_or_changes_it(jail: Jail, bystander: int) -> None:
    """Nor of the worker and its zygote, also where the user's others are open: who writes there owns all later calls."""
    ours = [jail.pid, *jail.zygotes]
    others = [] if jail.tier == RLIMITS and PROC_IS_OPEN else [bystander, os.getpid()]
    result = jail.attack(f"""
        import os
        reads = ('environ', 'maps', 'auxv', 'exe', 'cwd/.', 'root/.')
        writes = ('mem', 'oom_score_adj', 'autogroup', 'coredump_filter', 'clear_refs', 'sched')
        for pid in {ours + others}:
            for names, how in ((reads, os.O_RDONLY), (writes, os.O_WRONLY)):
                for name in names:
                    try:
                        os.open(f'/proc/{{pid}}/{{name}}', how)
                        print(pid, name)
                    except OSError:
                        pass
    """)
    assert (result.status, result.stdout) == ("ok", "")


@contained_by(*ALL)
def test_no_system_call_reads_writes_or_slows_down_another_process(jail: Jail, bystander: int) -> None:
    names = ["process_vm_readv", "process_vm_writev", "setpriority", "sched_setaffinity", "sched_setscheduler"]
    names += ["sched_setparam", "sched_setattr", "ioprio_set", "prlimit64", "process_madvise"]
    numbers = {name: number(name, MACHINE) for name in names}
    before = os.sched_getaffinity(bystander), os.getpriority(os.PRIO_PROCESS, bystander)
    result = jail.attack(
        CALL
        + f"""
for pid in {[bystander, os.getpid(), jail.pid, *jail.zygotes]}:
    zeros = (ctypes.c_ulong * 16)()
    for name, number in {numbers}.items():
        first = (1,) if name == 'ioprio_set' else (0,) if name == 'setpriority' else ()
        print(call(number, *first, pid, 19 if first else zeros, zeros, 0, 0, 0))
"""
    )
    assert set(result.stdout.split()) == {"EPERM"}, result
    assert (os.sched_getaffinity(bystander), os.getpriority(os.PRIO_PROCESS, bystander)) == before


@contained_by(LANDLOCK)
def test_what_can_be_asked_for_of_the_host_is_what_the_page_says(jail: Jail, bystander: int, tmp_path: Path) -> None:
    """docs/sandbox/threats.md promises no more: that a path is there, its size, its dates, a link's target."""
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("12345")
    (tmp_path / "link").symlink_to("its-target")
    ask = f"import os\nprint(os.path.exists('/proc/{bystander}'), os.path.exists('/proc/{2**22}'))"
    assert jail.attack(ask).stdout == "True False\n"
    result = jail.attack(
        f"import os\nprint(os.stat({str(tmp_path / 'file')!r}).st_size)\nprint(os.readlink({str(tmp_path / 'link')!r}))"
    )
    if result.status == "ok":  # else its user may not pass through the folders above
        assert result.stdout == "5\nits-target\n"


@contained_by(NAMESPACES)
def test_nothing_can_be_asked_for_of_the_host(jail: Jail, bystander: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("its-target")
    paths = [str(tmp_path), str(tmp_path / "link"), f"/proc/{bystander}", str(Path(__file__).resolve())]
    result = jail.attack(f"import os\nprint([os.path.lexists(path) for path in {paths}])")
    assert result.stdout == f"{[False] * 4}\n"


@contained_by(*ALL)
def test_writing_into_its_own_code_reaches_no_other_call(jail: Jail) -> None:
    """Through /proc/self/mem, which writes where the process itself may not."""
    result = jail.attack("""
        import os
        try:
            fd = os.open('/proc/self/mem', os.O_RDWR)
            for line in open('/proc/self/maps'):
                if 'r-xp' in line and 'libc' in line:
                    start = int(line.split('-')[0], 16)
                    os.pwrite(fd, b'\\xcc' * 4096, start + 0x20000)
        except OSError:
            pass
    """)
    assert result.status in ("ok", "error")
    assert jail.attack("print(sum(range(10)))").stdout == "45\n"
