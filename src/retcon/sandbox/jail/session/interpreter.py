"""Session interpreter: runs cells in one `__main__`, and makes frozen copies of itself.

Standard library only. It runs in the process of the untrusted code. Its report of a cell goes to the keeper (`keeper`)
between two copies of a token that the keeper drew for this cell, so that no output of a cell is taken for it. Code that
searches this process for the token (frames, `gc`, ctypes) can find it and report its failed cell as `ok`, or replace
this file's functions. It gains as much as by `try: ... except: pass`: the status of its own cell, and a state of its
own choice for rollbacks. How the process ended, its clocks, its memory, and which process is the copy the keeper learns
from the kernel; `infrastructure` cannot be reported from here.

A copy is made by fork: variables, modules, the state of `random` and the ids of objects stay, and so do the current
folder and the position in each open file. The running program must not notice it: a copy runs no hook of
`os.register_at_fork`, and keeps no end of a pipe. Pipes, whose ends are all in this process, are recreated at a
rollback. A state with more than that (other processes, threads, sockets, a deleted file) is not copied. Shared memory
is not rolled back, and `os.getpid()` changes.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import fcntl
import gc
import os
import resource
import socket
import stat
import sys
import termios
import traceback
from _signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, SIG_IGN, SIGCONT, SIGINT, default_int_handler, setitimer
from _signal import signal as set_handler
from collections.abc import Callable, Sequence
from marshal import loads
from os import _exit, getpid
from signal import sigwaitinfo
from time import sleep
from types import ModuleType
from typing import Any, Literal, NamedTuple, NoReturn, NotRequired, TypedDict

from retcon.sandbox.jail import child, kernel
from retcon.sandbox.jail import messages as wire
from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.confine.isolate import die_with_parent
from retcon.sandbox.jail.messages import Bounds, OpenSession, RunCall
from retcon.sandbox.jail.program import (
    compile_program,
    exit_code,
    flush_all,
    forbid_spawning,
    print_exception,
    register_source,
    reseed,
    type_name,
    write_error,
)
from retcon.sandbox.jail.session.functions import HostFunctions

# Functions that this file needs are bound to names here: a cell may replace those of any module.
_raise_limit, _limit, _to_text = resource.setrlimit, resource.getrlimit, repr
_MEMORY, _FILE_SIZE, _raised, _block = resource.RLIMIT_AS, resource.RLIMIT_FSIZE, sys.exception, bytes
_collects, _stop_collecting, _collect_again = gc.isenabled, gc.disable, gc.enable
CONTROL_FD = child.RECORD_FD
HOST_FD = CONTROL_FD + 1
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 1.0
"""Seconds that a frozen copy sleeps after a SIGCONT from a process other than the keeper, doubled each time: each time
costs CPU time, of which a copy has little (`AWAKE_NANOSECONDS`)."""
NAME = "<cell {}>"
EARLY, DONE, FAILED = "!", "=", "-"
"""Prefixes of reports: the name of an exception before its traceback; how a cell ended, or that a copy was made; that
no copy could be made, with a key of `OBSTACLES`."""
OBSTACLES = {
    "fork": "no further process can be made for a checkpoint",
    "pipe": "a pipe whose writing end is closed holds data that was not read",
    "socket": "a socket is open",
    "file": "a file is open that was deleted",
    "other": "a descriptor is open that is neither a file nor an unnamed pipe, such as an event loop's",
}
"""States of the interpreter that keep it from being copied."""
MEMORY_DEVICES = 1  # the major number of /dev/null, zero, full, random and urandom


def soft_limits(setting: child.Setting, limits: Bounds, spare: int) -> list[tuple[int, int]]:
    """Return (kind, value) of an interpreter's own limits for a cell. spare: processes besides the cell's."""
    tasks = setting.confinement.tasks + limits.processes + spare
    memory = setting.baseline + (limits.memory_mb << 20)
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    return list(zip(kinds, (memory, limits.file_mb << 20, limits.open_files, tasks), strict=True))


class CellCommand(TypedDict):
    """Keeper to interpreter, by `marshal`: run a cell. token: around its report, drawn when it is sent.

    output: most characters of the value. limits: (kind, value); see `soft_limits`.
    """

    op: Literal["cell"]
    token: NotRequired[bytes]
    code: str
    stdin: str
    files: dict[str, bytes]
    echo: bool
    output: int
    limits: list[tuple[int, int]]


class FreezeCommand(TypedDict):
    """Keeper to interpreter, which has one thread and no children: make a frozen copy."""

    op: Literal["freeze"]
    token: NotRequired[bytes]


def cell_command(cell: RunCall, setting: child.Setting, spare: int) -> CellCommand:
    """Make the command for a cell. spare: processes besides the cell's."""
    return {
        "op": "cell",
        "code": cell.code,
        "stdin": cell.stdin,
        "files": {name: base64.b64decode(content) for name, content in cell.files.items()},
        "echo": cell.echo,
        "output": cell.limits.output_bytes,
        "limits": soft_limits(setting, cell.limits, spare),
    }


class OpenFile(NamedTuple):
    """A descriptor to reopen. path, position: of a regular file. pipe: inode of a pipe."""

    fd: int
    flags: int
    inherited: bool
    path: str | None = None
    position: int = 0
    pipe: int | None = None


class Pipe(NamedTuple):
    """A pipe to recreate. ends: at least one. content: unread bytes."""

    ends: list[OpenFile]
    content: bytes


class NotCopyable(Exception):
    """A descriptor prevents a copy; the argument is a key of `OBSTACLES`."""


def serve_cells(
    streams: child.Streams, setting: child.Setting, asked: OpenSession, keeper: int, setup: int
) -> NoReturn:
    """Run cells until the control channel closes. asked: its limits bound those of the cells. keeper: its process id.
    setup: see `child.run`."""
    try:
        try:
            child.enter({}, asked.limits, streams, setting, Confinement.confine_session)
            reseed(asked.seed)
            forbid_spawning()
            die_with_parent()
            interpreter = Interpreter(setting.scratch, keeper, asked.functions)
        except BaseException as error:
            child.report_setup_error(setup, error)
            raise
        os.closerange(len(streams), child.FDS)
        interpreter.serve()
    finally:
        _exit(1)


class Interpreter:
    """The state that outlasts a cell."""

    def __init__(self, scratch: str, keeper: int, functions: Sequence[str] = ()) -> None:
        self._scratch = scratch
        self._keeper = keeper
        self._pid = getpid()
        self._control = socket.socket(fileno=CONTROL_FD)
        self._count = 0
        self._has_stdin = False
        self._streams = [_identity(os.fstat(fd)) for fd in _kept_streams(functions)]  # the keeper has their other ends
        self._given = dict(vars(builtins))
        self._changed: dict[str, Any] = {}
        self._main = ModuleType("__main__")
        sys.modules["__main__"] = self._main
        self._host = HostFunctions(HOST_FD) if functions else None
        if self._host is not None:
            vars(self._main).update({name: self._host.function(name) for name in functions})
        self._operations: dict[str, Callable[[Any], None]] = {"cell": self._cell, "freeze": self._freeze}

    def serve(self) -> NoReturn:
        set_handler(SIGINT, SIG_IGN)
        while True:
            body = wire.receive_bytes(self._control)
            if body is None:
                _exit(0)
            command = loads(body)
            self._operations[command["op"]](command)

    def _send_report(self, token: bytes, text: str) -> None:
        try:
            self._control.sendall(token + text.encode("utf-8", "replace") + token)
        except OSError:  # the cell closed the channel: the exit code still shows how it ended
            _exit(0 if text.startswith(DONE + "\0") else 1)

    def _cell(self, command: CellCommand) -> None:
        self._count += 1
        streams = (getattr(sys, "stdout", None), getattr(sys, "stderr", None))  # an earlier cell may have deleted them
        raised, value, room = "", "", (_limit(_MEMORY)[1],) * 2
        try:
            try:
                self._prepare(command)
                set_handler(SIGINT, default_int_handler)
                value = self._run(command["code"], command["echo"])
                flush_all(streams)
            finally:  # as in `child`: unlock headroom by code that needs no memory
                ended = _raised()
                try:  # noqa: SIM105 - `suppress` would allocate an object
                    _raise_limit(_MEMORY, room)
                except BaseException:  # noqa: BLE001, S110 - the cell has lowered it for good
                    pass
                try:
                    _block(child.ROOM)
                except MemoryError:
                    if ended is not None:
                        ended.__traceback__ = None
                self._reset_after_cell()
        except SystemExit as stop:
            code = exit_code(stop, streams)
            if code:
                raised = "SystemExit"
                write_error(f"SystemExit: {code}\n")
        except BaseException as error:  # noqa: BLE001 - whatever the cell raised is its result
            self._reset_after_cell()  # an interrupt may have hit the first one
            raised = type_name(error)[: child.NAME_CHARS]
            if getpid() == self._pid:  # at once: the following runs the cell's code, which may end the process
                self._send_report(command["token"], EARLY + raised)
            self._unlock_headroom()
            if raised == "MemoryError":
                traceback.clear_frames(error.__traceback__)
            flush_all(streams)
            self._report(error, raised)
        self._unlock_headroom()
        flush_all(streams)
        if getpid() != self._pid:  # a process that the cell forked reached the cell's end
            _exit(1 if raised else 0)
        self._send_report(command["token"], f"{DONE}{raised}\0{cut_middle(value, command['output'])}")

    def _prepare(self, command: CellCommand) -> None:
        vars(builtins).update(self._changed)
        self._changed = {}
        size = _limit(_FILE_SIZE)[1]
        _raise_limit(_FILE_SIZE, (size, size))  # an earlier cell's may be lower
        self._provide(command["stdin"], command["files"])
        self._main.__dict__["__file__"] = NAME.format(self._count)
        register_source(command["code"], NAME.format(self._count))
        for kind, soft in command["limits"]:
            hard = _limit(kind)[1]
            _raise_limit(kind, (soft if hard < 0 else min(soft, hard), hard))

    def _run(self, source: str, echo: bool) -> str:
        """Run the cell; return `=` and the repr of its last expression, "" without one."""
        body, last = compile_program(source, NAME.format(self._count), echo)
        exec(body, self._main.__dict__)
        result = None if last is None else eval(last, self._main.__dict__)
        return "" if result is None else "=" + _to_text(result)

    def _provide(self, stdin: str, files: dict[str, bytes]) -> None:
        if stdin or self._has_stdin:
            path = f"{self._scratch}/{os.urandom(8).hex()}"
            with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
                os.unlink(path)
                rest = memoryview(stdin.encode("utf-8", "surrogateescape"))
                while rest:  # a limit or a full folder is an error: half of it would be another input
                    rest = rest[file.write(rest) :]
                file.seek(0)
                os.dup2(file.fileno(), 0)
            sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
            self._has_stdin = bool(stdin)
        for name, content in files.items():
            path = f"{self._scratch}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)

    def _reset_after_cell(self) -> None:
        """Block interrupts and pending alarms of the cell, and restore builtins that it replaced, which this file
        needs. Idempotent."""
        set_handler(SIGINT, SIG_IGN)
        for timer in (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF):  # a handler would raise here between two cells
            setitimer(timer, 0)
        given, now = self._given, builtins.__dict__
        self._changed.update({name: now[name] for name in given if name in now and now[name] is not given[name]})
        now.update(given)

    def _unlock_headroom(self) -> None:
        """Unlock the memory headroom for this file's own work."""
        hard = _limit(resource.RLIMIT_AS)[1]
        _raise_limit(resource.RLIMIT_AS, (hard, hard))

    def _report(self, error: BaseException, name: str) -> None:
        try:
            print_exception(error, __file__)
        except BaseException:  # noqa: BLE001 - the cell broke the traceback module, or its exception's own methods raise
            write_error(f"{name}\n")

    def _freeze(self, command: FreezeCommand) -> None:
        """Make a frozen copy, without the garbage collector, which could close inspected descriptors."""
        collects = _collects()
        _stop_collecting()
        try:
            self._copy(command)
        finally:
            if collects:
                _collect_again()

    def _copy(self, command: FreezeCommand) -> None:
        """Make a frozen copy, which returns once it is woken; the original returns at once.

        The copy is the keeper's child, so that no `os.wait()` of a cell sees it.
        """
        flush_all(())
        folder = self._scratch
        with contextlib.suppress(OSError):  # a cell removed it
            folder = os.getcwd()
        mask = kernel.mask_signals(kernel.ALL_SIGNALS)
        try:
            files = _open_files(self._streams)
            pipes = _pipes(files)
            let_go = os.pipe() if pipes else ()
            try:
                is_copy = kernel.clone_sibling() == 0
                if is_copy:
                    self._sleep_frozen([*(file.fd for pipe in pipes for file in pipe.ends), *let_go])
                elif let_go:
                    os.dup2(CONTROL_FD, let_go[1])
                    os.read(let_go[0], 1)  # until the copy has closed its own
            finally:
                for fd in let_go:
                    os.close(fd)
        except NotCopyable as obstacle:
            self._send_report(command["token"], f"{FAILED}{obstacle}")
            return
        except OSError:
            self._send_report(command["token"], f"{FAILED}fork")
            return
        finally:
            kernel.mask_signals(mask)
        if not is_copy:
            self._send_report(command["token"], DONE)
            return
        with contextlib.suppress(OSError):
            os.chdir(folder)
        for pipe in pipes:
            _make_pipe(pipe)
        for file in files:
            _reopen(file)

    def _sleep_frozen(self, closed: list[int]) -> None:
        """Sleep as the frozen copy until the keeper continues it: the kernel names the sender, so that no cell can.
        Other signals until then, such as of `os.killpg`, are discarded. closed: descriptors to close."""
        self._pid = getpid()
        if self._host is not None:
            self._host.adopt_process()
        try:
            die_with_parent()
            for fd in closed:
                os.dup2(CONTROL_FD, fd)  # keeps its number taken
        except OSError:
            _exit(1)
        pause = FIRST_PAUSE
        while True:
            sent = sigwaitinfo({SIGCONT})
            if sent.si_pid == self._keeper and sent.si_code == 0:  # SI_USER, which only the kernel sets
                kernel.drop_signals()
                return
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _kept_streams(functions: Sequence[str]) -> range:
    return range(1, (HOST_FD if functions else CONTROL_FD) + 1)


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _open_files(streams: list[tuple[int, int]]) -> list[OpenFile]:
    """List open descriptors. streams: of stdout, stderr and the control channel. Raises NotCopyable, OSError."""
    files = []
    for fd in child.open_descriptors():
        try:
            facts = os.fstat(fd)
        except OSError:  # `open_descriptors` failed to exclude it
            continue
        file = OpenFile(fd, fcntl.fcntl(fd, fcntl.F_GETFL), os.get_inheritable(fd))
        kind = stat.S_IFMT(facts.st_mode)
        if kind == stat.S_IFREG:
            if not facts.st_nlink and fd:  # a cell's stdin is one
                raise NotCopyable("file")
            path = ""
            with contextlib.suppress(OSError):  # no /proc
                path = os.readlink(f"/proc/self/fd/{fd}")
            file = file._replace(path=path, position=os.lseek(fd, 0, os.SEEK_CUR))
        elif _identity(facts) in streams:
            pass
        elif kind == stat.S_IFIFO and facts.st_dev == streams[0][0] and not file.flags & (os.O_RDWR | os.O_DIRECT):
            file = file._replace(pipe=facts.st_ino)
        elif kind == stat.S_IFSOCK:
            raise NotCopyable("socket")
        elif kind != stat.S_IFDIR and not (kind == stat.S_IFCHR and os.major(facts.st_rdev) == MEMORY_DEVICES):
            raise NotCopyable("other")
        files.append(file)
    return files


def _pipes(files: list[OpenFile]) -> list[Pipe]:
    """Return the descriptors' pipes; their content is read and written back, as no other process has an end.

    Raises NotCopyable, OSError.
    """
    found: dict[int, list[OpenFile]] = {}
    for file in files:
        if file.pipe is not None:
            found.setdefault(file.pipe, []).append(file)
    pipes = []
    for ends in found.values():
        readers, writers = ([file.fd for file in ends if file.flags & os.O_WRONLY == way] for way in (0, os.O_WRONLY))
        held = int.from_bytes(fcntl.ioctl(readers[0], termios.FIONREAD, bytes(4)), sys.byteorder) if readers else 0
        if held and not writers:
            raise NotCopyable("pipe")
        content = os.read(readers[0], held) if held else b""
        if content:
            os.write(writers[0], content)
        pipes.append(Pipe(ends, content))
    return pipes


def _make_pipe(pipe: Pipe) -> None:
    """Recreate a pipe at its descriptors."""
    made = os.pipe()
    os.write(made[1], pipe.content)
    for file in pipe.ends:
        os.dup2(made[file.flags & os.O_WRONLY], file.fd, inheritable=file.inherited)
    for fd in made:
        os.close(fd)


def _reopen(file: OpenFile) -> None:
    """Restore a descriptor's flags and position, which later cells share; if its path is another file now, reopen
    it."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(file.fd, fcntl.F_SETFL, file.flags)
    if file.path is None:
        return
    with contextlib.suppress(OSError):
        try:
            old, new = os.fstat(file.fd), os.stat(file.path, follow_symlinks=False)
            if stat.S_ISREG(new.st_mode) and (old.st_dev, old.st_ino) != (new.st_dev, new.st_ino):
                fd = os.open(file.path, file.flags | os.O_CLOEXEC | os.O_NOFOLLOW)
                os.dup2(fd, file.fd, inheritable=file.inherited)
                os.close(fd)
        finally:
            os.lseek(file.fd, file.position, os.SEEK_SET)
