"""Attacks by system call: what no program needs is refused by the filter, whoever calls and however."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from jail import ALL, CALL, CONTAINED, Jail, contained_by
from retcon.sandbox.jail.confine.seccomp import ABSENT, ARCHITECTURES, DENIED, HIGHEST, SKIPPED, UNSUPPORTED, number

MACHINE = os.uname().machine
pytestmark = pytest.mark.skipif(MACHINE not in ARCHITECTURES, reason=f"no system call filter for {MACHINE}")


def numbers(names: Iterable[str]) -> dict[str, int]:
    return {name: found for name in names if (found := number(name, MACHINE)) is not None}


@contained_by(*ALL)
@pytest.mark.parametrize(("names", "answer"), [(DENIED, "EPERM"), (ABSENT, "ENOSYS"), (UNSUPPORTED, "ENOTSUP")])
def test_what_no_program_needs_is_refused(jail: Jail, names: Iterable[str], answer: str) -> None:
    wanted = numbers(names)
    result = jail.attack(CALL + f"for name, n in {wanted}.items(): print(name, call(n, 0, 0, 0, 0, 0, 0))")
    assert result.stdout.splitlines() == [f"{name} {answer}" for name in wanted]


@contained_by(*ALL)
def test_no_file_system_of_the_machine_is_made_to_write(jail: Jail) -> None:
    """What does nothing does not even find that there is no such descriptor."""
    wanted = numbers(SKIPPED)
    result = jail.attack(CALL + f"for name, n in {wanted}.items(): print(name, call(n, -1))")
    assert result.stdout.splitlines() == [f"{name} ok" for name in wanted]


@contained_by(*ALL)
def test_calls_that_are_not_known_yet_do_not_exist(jail: Jail) -> None:
    tried = [HIGHEST + 1, HIGHEST + 100, 1000, 0x40000000, 0x40000000 + 56, 0x7FFFFFFF]  # x32's among them
    assert set(jail.attack(CALL + f"for n in {tried}: print(call(n))").stdout.split()) == {"ENOSYS"}


@contained_by(*ALL)
@pytest.mark.parametrize("flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_is_made(jail: Jail, flag: int) -> None:
    found = numbers(["clone", "unshare", "setns"])
    code = f"print(call({found['clone']}, {flag} | 17, 0, 0, 0, 0), call({found['unshare']}, {flag}), call({found['setns']}, 0, 0))"
    assert jail.attack(CALL + code).stdout == "EPERM EPERM EPERM\n"


@contained_by(*ALL)
@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 kernels take the calls of another architecture")
def test_calls_by_the_gate_of_32_bits_end_the_process(jail: Jail) -> None:
    result = jail.attack("""
        import ctypes, mmap
        page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex('b814000000 cd80 c3'))  # mov eax, 20 (getpid); int 0x80; ret
        print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
    """)
    assert (result.status, result.stdout) == ("error", "")
    assert result.error_type in ("SIGSYS", "SIGSEGV")


@contained_by(*ALL)
def test_no_privilege_comes_back_by_running_a_program(jail: Jail) -> None:
    result = jail.attack("""
        import os
from collections.abc import Iterable
        for path in ('/usr/bin/su', '/bin/su', '/usr/bin/sudo', '/usr/bin/mount', '/usr/bin/newuidmap'):
            if os.path.exists(path) and os.stat(path).st_mode & 0o4000:
                os.execv('/bin/sh', ['sh', '-c', 'grep NoNewPrivs /proc/self/status; id -u; exec ' + path + ' --version'])
        print('none')
    """)
    assert "uid=0" not in result.stdout
    assert not result.stdout.startswith("0\n")


@contained_by(*CONTAINED)
@pytest.mark.parametrize("kind", ["shm", "sem", "msg", "mq"])
def test_no_object_is_left_in_the_kernel(jail: Jail, kind: str) -> None:
    calls = {"shm": ("shmget", 1234, 4096, 0o1666), "sem": ("semget", 1234, 1, 0o1666), "msg": ("msgget", 1234, 0o1666)}
    name, *arguments = calls.get(kind, ("mq_open", "b'x'", 0o102, 0o666, 0))
    code = f"print(call({numbers([name])[name]}, {', '.join(map(str, arguments))}))"
    assert jail.attack(CALL + code).stdout == "EPERM\n"
