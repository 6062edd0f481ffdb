"""Attacks on memory: what a call holds is counted wherever it hides, and what it sends does not grow in the worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jail import ALL, CALL, CONTAINED, LANDLOCK, NAMESPACES, Jail, contained_by
from retcon.sandbox.jail.confine.seccomp import ARCHITECTURES, number
from retcon.sandbox.types import MOST

MACHINE = os.uname().machine
EXIT, MREMAP = {"x86_64": (60, 25), "aarch64": (93, 216)}.get(MACHINE, (0, 0))
TIMER_CREATE = {"x86_64": 222, "aarch64": 107}.get(MACHINE, 0)
pytestmark = pytest.mark.skipif(MACHINE not in ARCHITECTURES, reason=f"no system call filter for {MACHINE}")

# `mapped(flags, fd)` is an address, or the name of the error
MAP = (
    CALL
    + """
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
def mapped(flags, size, fd=-1, protection=3):
    found = libc.mmap(None, ctypes.c_size_t(size), protection, flags, fd, ctypes.c_long(0))
    return errno.errorcode[ctypes.get_errno()] if found == 2**64 - 1 else found
"""
)


def most_memory(worker: int) -> int:
    """Bytes that a worker, or its child which is process 1 of its namespace, has had in memory at most."""
    found = [worker, *map(int, Path(f"/proc/{worker}/task/{worker}/children").read_text().split())]
    lines = [line for pid in found for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return max(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


# `lend(seconds)` has a process run in this one's memory for so long, as one does from vfork until it is another program
LEND = """
import ctypes, os, subprocess, sys, threading, time
libc = ctypes.CDLL(None)
def lend(seconds):
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & -16)
    libc.clone(ctypes.cast(libc.usleep, ctypes.c_void_p), top, 0x4100 | 17, ctypes.c_void_p(int(seconds * 1e6)))
"""


@contained_by(NAMESPACES)
@pytest.mark.parametrize("does", ["lend(.2)", "for _ in range(50): subprocess.run(['/bin/true'], check=True)"])
def test_a_process_that_runs_in_its_parents_memory_counts_once(jail: Jail, does: str) -> None:
    result = jail.attack(
        LEND + f"memory = bytearray(b'x') * (90 << 20)\n{does}\nprint('done')",
        memory_mb=160,
        cpu_seconds=60,
        wall_seconds=60,
    )
    assert (result.status, result.stdout) == ("ok", "done\n"), result


@contained_by(NAMESPACES)
def test_processes_cannot_outgrow_it_however_long_the_call_may_take(jail: Jail) -> None:
    result = jail.attack(
        """
        import os, time
        for _ in range(4):
            if os.fork() == 0:
                held = bytearray(60 << 20)
                time.sleep(60)
        time.sleep(60)
        """,
        memory_mb=128,
        wall_seconds=MOST,
    )
    assert (result.status, result.error_type) == ("limit", "MemoryError"), result


@contained_by(NAMESPACES)
@pytest.mark.parametrize("ends", [False, True], ids=["alive", "first thread ended"])
def test_processes_cannot_outgrow_the_limit_together(jail: Jail, ends: bool) -> None:
    """Nor by ending their first threads, in whose place /proc then shows nothing. Each says what it has touched."""
    result = jail.attack(
        f"""
        import ctypes, mmap, os, threading, time
        def hold():
            memory = mmap.mmap(-1, 100 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for start in range(0, len(memory), 1 << 20):
                for place in range(start, start + (1 << 20), 4096):
                    memory[place] = 1
                os.write(1, b'.')
                time.sleep(.005)  # at a pace that does not depend on how many cores there are
            time.sleep(60)
        for _ in range(12):
            if os.fork() == 0:
                if {ends}:
                    threading.Thread(target=hold).start()
                    ctypes.CDLL(None).syscall({EXIT}, 0)
                hold()
        time.sleep(60)
        """,
        memory_mb=128,
        wall_seconds=60,
        cpu_seconds=60,
    )
    assert (result.status, result.error_type) == ("limit", "MemoryError")
    assert len(result.stdout) < 400  # MiB, of 1,200


@contained_by(NAMESPACES)
def test_what_grows_below_a_process_whose_first_thread_ended_is_found(jail: Jail) -> None:
    result = jail.attack(
        f"""
        import ctypes, os, threading, time
        def start():
            for _ in range(4):
                if os.fork() == 0:
                    memory = bytearray(b'x') * (60 << 20)
                    time.sleep(60)
            time.sleep(60)
        if os.fork() == 0:
            threading.Thread(target=start).start()
            ctypes.CDLL(None).syscall({EXIT}, 0)
        time.sleep(60)
        """,
        memory_mb=128,
        wall_seconds=30,
    )
    assert (result.status, result.error_type) == ("limit", "MemoryError")


@contained_by(*ALL)
def test_shared_memory_that_nobody_maps_any_more_cannot_be_made(jail: Jail) -> None:
    """All but a page of each mapping goes, and all of its memory stays: in no process, and without end."""
    result = jail.attack(
        MAP
        + """
for flags in (0x21, 0x23, 0x21 | 0x8000, 0x21 | 0x4000):
    for high in (0, 1 << 32):
        print(mapped(flags | high, 16 << 20))
import mmap
try:
    mmap.mmap(-1, 4096)
except PermissionError as error:
    print('EPERM')
"""
    )
    assert result.stdout.split() == ["EPERM"] * 9


@contained_by(*CONTAINED)
def test_the_device_of_zeros_gives_no_shared_memory_either(jail: Jail) -> None:
    result = jail.attack(
        MAP
        + """
import os
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        fd = os.open('/dev/zero', flags)
    except PermissionError:
        print('closed')
        continue
    print(os.read(fd, 2), mapped(1, 16 << 20, fd, 1 | flags), mapped(2, 16 << 20, fd, 3))
"""
    )
    closed = ["closed"] * 2
    assert result.stdout.splitlines() == (closed if jail.tier == LANDLOCK else [r"b'\x00\x00' ENODEV ENODEV"] * 2)


@contained_by(*ALL)
def test_the_machines_huge_pages_are_not_for_calls(jail: Jail) -> None:
    result = jail.attack(MAP + "print([mapped(0x40022 | size << 26, 2 << 20) for size in (0, 21, 30)])")
    assert result.stdout == "['ENOMEM', 'ENOMEM', 'ENOMEM']\n"


@contained_by(*ALL)
def test_memory_cannot_be_sent_to_the_swap(jail: Jail) -> None:
    madvise = number("madvise", MACHINE)
    result = jail.attack(MAP + f"print(call({madvise}, mapped(0x22, 1 << 20), 1 << 20, 21))")
    assert result.stdout == "EINVAL\n"


@contained_by(*ALL)
def test_pipes_keep_their_size(jail: Jail) -> None:
    result = jail.attack("""
        import fcntl, os
        reads, writes = os.pipe()
        try:
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1 << 20)
        except PermissionError:
            pass
        os.set_blocking(writes, False)
        print(os.write(writes, bytes(1 << 20)) <= 65536)
    """)
    assert result.stdout == "True\n"


@contained_by(*ALL)
def test_timers_are_bounded(jail: Jail) -> None:
    """Each takes the kernel's memory, out of what its user has for all processes."""
    result = jail.attack(
        CALL
        + f"""
made, timer = 0, ctypes.c_int()
while made < 5000 and call({TIMER_CREATE}, 0, None, ctypes.byref(timer)) == 'ok':
    made += 1
print(made)
"""
    )
    assert 0 <= int(result.stdout) <= 512


@contained_by(*ALL)
def test_descriptors_on_their_way_are_bounded(jail: Jail) -> None:
    result = jail.attack("""
        import os, socket
        sent = 0
        a, b = socket.socketpair()
        b.setblocking(False)
        a.setblocking(False)
        try:
            while sent < 10_000:
                reads, writes = os.pipe()
                socket.send_fds(a, [b'x'], [reads, writes])
                os.close(reads)
                os.close(writes)
                sent += 2
        except OSError:
            pass
        print(sent)
    """)
    assert 0 < int(result.stdout) <= 600  # what a socket of the usual size takes


@contained_by(*ALL)
@pytest.mark.parametrize(
    ("output_mb", "made"),
    [(16, "b'x' * (1 << 20)"), (1, "bytes(1 << 20)"), (16, "b''.join(os.urandom(16) * 4096 for _ in range(16))")],
)
def test_what_comes_through_the_pipe_of_the_record_does_not_grow_in_the_worker(
    jail: Jail, output_mb: int, made: str
) -> None:
    jail.attack("1")
    before = most_memory(jail.pid)
    result = jail.attack(
        f"import os\nblock = {made}\nfor _ in range(300): os.write(3, block)\n'value'",
        output_bytes=output_mb << 20,
        cpu_seconds=30,
        wall_seconds=60,
    )
    assert (result.status, result.value) == ("ok", "'value'")
    assert most_memory(jail.pid) - before < 8 << 20


@contained_by(*ALL)
def test_a_record_without_an_end_does_not_grow_in_the_worker(jail: Jail) -> None:
    """The call finds its token, begins a record, and writes on."""
    jail.attack("1")
    before = most_memory(jail.pid)
    result = jail.attack(
        """
        import os, sys
        frame = sys._getframe()
        while 'token' not in frame.f_locals:
            frame = frame.f_back
        os.write(3, frame.f_locals['token'])
        block = bytes(1 << 20)
        for _ in range(300):
            os.write(3, block)
        1 / 0
        """,
        output_bytes=1 << 20,
        cpu_seconds=30,
        wall_seconds=60,
    )
    assert (result.status, result.exit_code) == ("error", 1)
    assert most_memory(jail.pid) - before < 16 << 20


@contained_by(*ALL)
def test_a_flood_of_output_does_not_grow_in_the_worker(jail: Jail) -> None:
    jail.attack("1")
    before = most_memory(jail.pid)
    result = jail.attack(
        "import os\nblock = bytes(1 << 20)\nfor _ in range(300):\n    os.write(1, block)\n    os.write(2, block)",
        cpu_seconds=30,
        wall_seconds=60,
    )
    assert result.status == "ok"
    assert most_memory(jail.pid) - before < 8 << 20
