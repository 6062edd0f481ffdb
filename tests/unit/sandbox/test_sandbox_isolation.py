"""The parts of the isolation whose logic can be seen without a process: filters, users, cgroups, emptying, choosing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from retcon.sandbox.jail import scratch
from retcon.sandbox.jail.confine import cgroup, landlock, root, seccomp
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.confine.isolate import try_tier
from retcon.sandbox.jail.confine.seccomp import ALLOW, ERRNO, KILL, NUMBERS, Instruction
from retcon.sandbox.jail.confine.users import FIRST_UID, OVERFLOW_UID, PASSING, UIDS, pick_uid
from retcon.sandbox.jail.messages import Bounds
from retcon.sandbox.jail.watchdog import Watchdog

ENOSYS, EPERM = ERRNO | 38, ERRNO | 1


def verdict(program: list[Instruction], arch: int, number: int, *arguments: int) -> int:
    """What the kernel's interpreter makes of a filter program."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = {0: number, 4: arch}
    for index, value in enumerate(given):
        data[16 + 8 * index], data[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32
    accumulator = at = 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            accumulator = data[value]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return value
        else:
            taken = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: bool(accumulator & value)}[code]
            at += yes if taken else no


@pytest.fixture(params=[("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)], ids=lambda p: p[0])
def machine(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


def test_the_base_filter_decides_as_it_says(machine: tuple[str, int]) -> None:
    name, arch = machine
    program = seccomp.assemble(seccomp.base_rules(), name)

    def asked(call: str, *arguments: int) -> int:
        number = seccomp.number(call, name)
        assert number is not None
        return verdict(program, arch, number, *arguments)

    assert verdict(program, arch ^ 1, 0) == KILL
    assert verdict(program, arch, seccomp.HIGHEST + 1) == verdict(program, arch, 0x40000000) == ENOSYS
    assert all(asked(call) == EPERM for call in seccomp.DENIED if seccomp.number(call, name) is not None)
    assert asked("clone3") == ENOSYS
    assert asked("clone", seccomp.CLONE_THREAD) == asked("clone", 17) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert asked("clone", 17 | flag) == EPERM
    assert [asked("socket", family) for family in (1, 2, 10)] == [ALLOW] * 3
    assert [asked("socket", family) for family in (0, 16, 17, 40)] == [ERRNO | 97] * 4
    assert asked("prlimit64", 0) == ALLOW
    assert asked("prlimit64", 1) == EPERM
    assert asked("setpriority", 0, 0) == ALLOW
    assert asked("setpriority", 1, 0) == asked("setpriority", 0, 5) == EPERM
    assert asked("ioprio_set", 1, 0) == ALLOW
    assert asked("ioprio_set", 1, 5) == asked("ioprio_set", 2, 0) == EPERM
    assert asked("personality", 0xFFFFFFFF) == asked("personality", 0) == ALLOW
    assert asked("personality", 0x0040000) == EPERM
    assert asked("setrlimit", 3) == asked("prlimit64", 0, 3, 1) == asked("prlimit64", 0, 4, 0) == ALLOW
    assert asked("setrlimit", 4) == asked("prlimit64", 0, 4, 1) == asked("prlimit64", 0, 4, 1 << 32) == ERRNO
    assert asked("ioctl", 0, 0x5412) == asked("ioctl", 0, 0x541C) == EPERM
    assert asked("ioctl", 0, 0x5401) == ALLOW
    assert asked("prctl", 1, 9) == asked("prctl", 38, 1) == asked("prctl", 4, 0) == asked("prctl", 15, 1) == ALLOW
    assert asked("prctl", 1, 0) == asked("prctl", 4, 1) == EPERM
    assert {asked("prctl", option) for option in seccomp.PRCTL_REFUSED} == {EPERM}


def test_commands_are_distinguished_by_what_the_kernel_reads_of_them(machine: tuple[str, int]) -> None:
    name, arch = machine
    program = seccomp.assemble([*seccomp.base_rules(), *seccomp.no_allocation()], name)

    def asked(call: str, place: int, value: int) -> int:
        """The answer to a value in that place, whatever its upper half, which the kernel does not read."""
        number = seccomp.number(call, name)
        assert number is not None
        answers = {verdict(program, arch, number, *[0] * place, value | high << 32) for high in (0, 1, 0xFFFFFFFF)}
        assert len(answers) == 1
        return answers.pop()

    for command in (8, 10, 15, 1024, 1026, 1031, 1036, 1038):
        assert asked("fcntl", 1, command) == EPERM
    for command in (36, 37, 38):
        assert asked("fcntl", 1, command) == ERRNO | 22
    for command in (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 16, 1025, 1030, 1032, 1033, 1034):
        assert asked("fcntl", 1, command) == ALLOW
    for command in (0x5401, 0x5411, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x8903, 0x8910, 0x8933, 0x80045430):
        assert asked("ioctl", 1, command) == ALLOW
    for command in (0x5412, 0x541C, 0x5452):
        assert asked("ioctl", 1, command) == EPERM
    attributes, verity, clone = 0x40086602, 0x40806685, 0x40049409
    for command in (0x8901, 0x8902, attributes, verity, clone, 0, 0x5400, 0x5460, 0x8941, 0xFFFFFFFF):
        assert asked("ioctl", 1, command) == ERRNO | 25
    private, shared, validated, fixed = 0x22, 0x21, 0x23, 0x10
    assert asked("mmap", 3, private) == asked("mmap", 3, private | fixed) == ALLOW
    assert asked("mmap", 3, 0x01) == asked("mmap", 3, 0x02) == ALLOW  # of a file
    assert asked("mmap", 3, shared) == asked("mmap", 3, validated) == asked("mmap", 3, shared | fixed) == EPERM
    assert asked("mmap", 3, private | 0x40000) == ERRNO | 12
    assert asked("madvise", 2, 21) == ERRNO | 22
    assert asked("madvise", 2, 4) == ALLOW
    assert asked("flock", 1, 2) == asked("fallocate", 1, 0) == ERRNO | 95


def test_the_filters_of_a_call_decide_as_they_say(machine: tuple[str, int]) -> None:
    name, arch = machine
    rules = [*seccomp.no_sockets(), *seccomp.no_processes(), *seccomp.no_metadata(), *seccomp.own_signals(77)]
    program = seccomp.assemble(rules, name)
    numbers = {call: number for call in NUMBERS if (number := seccomp.number(call, name)) is not None}
    assert verdict(program, arch, numbers["socket"], 1) == ERRNO | 13
    assert verdict(program, arch, numbers["socketpair"], 1, 1 | 0o2000000) == ALLOW
    assert verdict(program, arch, numbers["socketpair"], 1, 2) == ERRNO | 13
    assert verdict(program, arch, numbers["clone"], 17) == EPERM
    assert verdict(program, arch, numbers["clone"], seccomp.CLONE_THREAD | 0x100) == ALLOW
    assert verdict(program, arch, numbers["kill"], 77, 9) == ALLOW
    assert verdict(program, arch, numbers["kill"], -1 & 0xFFFFFFFF, 9) == EPERM
    for call in ("fchmodat", "fchmod", "fchown", "utimensat"):
        assert verdict(program, arch, numbers[call], 5, 0) == ERRNO
    for half in (1, 1 << 32):  # of a pointer
        assert verdict(program, arch, numbers["utimensat"], 5, half, half) == ERRNO
        assert verdict(program, arch, numbers["utimensat"], 5, half, 0) == EPERM
        assert verdict(program, arch, numbers["utimensat"], 5, 0, half) == ERRNO


def test_another_machine_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.Filter(seccomp.base_rules(), "riscv64")


@pytest.mark.parametrize("version", range(1, 8))
def test_a_ruleset_asks_for_no_more_than_its_version_knows(version: int) -> None:
    try:
        offered = landlock.abi()
    except OSError as error:
        pytest.skip(str(error))
    if version > offered:
        pytest.skip(f"this kernel has Landlock ABI {offered}")
    rules = landlock.Ruleset(version, files=True)
    rules.allow(root.readable(), landlock.READ)
    rules.allow(["/dev/null", "/nowhere"], landlock.DEVICE)
    assert rules.handled.bit_length() == {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    assert rules.scoped == (version >= landlock.SCOPE_ABI)


def test_an_old_landlock_is_refused_where_calls_keep_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 2)
    assert "ABI 2" in try_tier(str(tmp_path), "landlock", None)


def test_what_calls_may_read_holds_python_and_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    project, packages = tmp_path / "project", tmp_path / "venv/lib/site-packages"
    packages.mkdir(parents=True)
    project.mkdir()
    monkeypatch.setattr("sys.path", ["", str(project), str(packages)])
    monkeypatch.setattr("sys.prefix", str(project))  # an environment that is the project itself
    shown = root.readable()
    assert str(packages) in shown
    assert not {"/", "/etc", "/home", "/root", "/var", "/run", "/sys", "/proc", str(project), ""} & set(shown)
    assert any(os.__file__.startswith(path + "/") for path in map(os.path.realpath, shown)) or os.__file__.startswith(
        "/usr"
    )


def test_a_uid_is_of_the_range_and_free() -> None:
    assert any(pick_uid() in uids for uids in (range(FIRST_UID, FIRST_UID + UIDS), PASSING))
    assert pick_uid(-5, 2) in PASSING  # those are not mapped: the workers of a container are not one user all the same


def test_a_uid_is_not_one_that_is_taken_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retcon.sandbox.jail.confine.users.used_uids", lambda: set(range(7)))
    assert {pick_uid(5, 3) for _ in range(50)} == {7}
    assert pick_uid(5, 2) in (5, 6)  # rather than none


ROOT_ALONE = """
import os
from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.users import pick_uid
maps = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
kernel.unshare(0x10000000)  # CLONE_NEWUSER
for name, line in maps.items():
    with open(f"/proc/self/{name}", "w") as file:
        file.write(line)
try:
    print(pick_uid())
except OSError as error:
    print("refused:", error)
"""


def test_a_user_namespace_without_any_user_for_calls_is_refused() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", ROOT_ALONE], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        pytest.skip("no user namespace can be had here: " + ran.stderr.splitlines()[-1])
    assert ran.stdout.startswith("refused: calls need a user of their own"), ran.stdout
    assert f"nor {OVERFLOW_UID}" in ran.stdout


def test_emptying_leaves_nothing_whatever_is_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    folder = tmp_path / "folder"
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    (folder / "link").symlink_to(outside)
    (folder / "a/loop").symlink_to("..")
    os.mkfifo(folder / "a/fifo")
    (folder / "a/b").chmod(0)
    (folder / "a").chmod(0)
    fd = os.open(folder, os.O_RDONLY)
    try:
        scratch.empty_folder(fd)
    finally:
        os.close(fd)
    assert not list(folder.iterdir())
    assert outside.read_text() == "kept"


def test_the_size_is_of_what_is_there_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x").write_bytes(b"1" * 100_000)
    (tmp_path / "all").symlink_to("/")
    (tmp_path / "y").hardlink_to(tmp_path / "d/x")
    held = scratch.measure(str(tmp_path), 10)
    assert 100_000 <= held.size < 200_000
    assert held.entries == 4
    assert scratch.measure(str(tmp_path), 2).entries == 3


def test_the_size_is_measured_however_deep_and_whatever_the_modes(tmp_path: Path) -> None:
    descriptors = list(Path("/proc/self/fd").iterdir())
    depth, deeper = 100, "d" * 200  # in all longer than a path can be
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        for name in ("left", "right", deeper):
            os.mkdir(name, dir_fd=here)
        below = os.open(deeper, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    closed = tmp_path / deeper
    closed.chmod(0)
    try:
        assert scratch.measure(str(tmp_path), 10_000).entries == 3 * depth + 1
        assert stat.S_IMODE(closed.stat().st_mode) == 0
    finally:
        top = os.open(tmp_path, os.O_RDONLY)
        scratch.empty_folder(top)
        os.close(top)
    assert list(Path("/proc/self/fd").iterdir()) == descriptors


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """What a cgroup that was handed to this user looks like, but for the kernel behind it."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    return tmp_path


def test_a_cgroup_is_found_by_its_line(delegated: Path) -> None:
    table = delegated / "table"
    table.write_text("4:memory:/old\n0::/user/x\n")
    with pytest.raises(OSError, match="no cgroup v2"):
        cgroup.own(str(delegated), str(table))
    table.write_text("0::/\n")
    assert cgroup.own(str(delegated), str(table)) == str(delegated)


def test_a_cgroup_without_its_controllers_is_refused_and_nothing_is_left(delegated: Path) -> None:
    with pytest.raises(OSError, match="does not pass on memory and pids"):
        cgroup.Cgroup(str(delegated), "1")
    assert not [path for path in delegated.iterdir() if path.is_dir()]


@pytest.fixture
def group(delegated: Path, monkeypatch: pytest.MonkeyPatch) -> cgroup.Cgroup:
    """A worker's, entered."""
    made = os.mkdir

    def mkdir(path: str) -> None:  # the kernel fills a new cgroup with its files
        made(path)
        for name, text in (("memory.max", "max"), ("pids.max", "max"), ("memory.events", "oom 3\noom_kill 2\n")):
            (Path(path) / name).write_text(text)

    monkeypatch.setattr(cgroup.os, "mkdir", mkdir)
    monkeypatch.setenv(cgroup.VARIABLE, str(delegated))
    return cgroup.join("7", 99)


def test_a_group_is_entered_limited_and_asked(delegated: Path, group: cgroup.Cgroup) -> None:
    folder = delegated / "retcon-7"
    assert (folder / "pids.max").read_text() == "99"
    assert (folder / "cgroup.procs").read_text() == "0"
    group.limit(1000)
    assert (folder / "memory.max").read_text()[:4] == "1000"
    assert group.kills() == (3, 2)
    assert stat.S_ISDIR(folder.stat().st_mode)


@pytest.mark.parametrize(
    ("limit", "killed", "status", "machine", "said"),
    [
        (3, 2, signal.SIGKILL, False, ""),
        (4, 3, signal.SIGKILL, False, "MemoryError: its processes held more than 64 MiB together"),
        (3, 3, signal.SIGKILL, True, ""),
        (3, 3, signal.SIGSEGV, False, ""),
    ],
    ids=["itself", "its limit", "the machine", "otherwise"],
)
def test_who_ended_a_call_in_a_cgroup(
    group: cgroup.Cgroup, limit: int, killed: int, status: int, machine: bool, said: str
) -> None:
    """limit, killed: what the cgroup counts afterwards. What other calls are killed for is no excuse of this one's."""
    confinement = Confinement("namespaces", "/nowhere")
    confinement.bounded, confinement.group = True, group
    watchdog = Watchdog(confinement, Bounds(1.0, 1.0, 64, 100, 16, 64, 8), baseline=0)
    Path(group.folder, "memory.events").write_text(f"max 9\noom {limit}\noom_kill {killed}\noom_group_kill 0\n")
    assert (watchdog.judge(status), watchdog.reason) == (machine, said)


def test_where_calls_write_is_not_where_python_lies() -> None:
    assert root._free_home(["/usr", "/tmpfs/python"]) == "/tmp"
    assert root._free_home(["/usr", "/tmp/project/.venv/lib"]) == "/var/tmp"
    with pytest.raises(OSError, match="none is left to write to"):
        root._free_home(["/tmp", "/var/tmp/a", "/home/sandbox/b"])
