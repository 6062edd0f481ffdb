"""Process of one call: sets limits, runs the program, reports its error.

Standard library only. The worker does not trust this process: it learns from the kernel how it ended, and the record
that is written at the end can only name an exception and carry the last expression's repr.
"""

from __future__ import annotations

import atexit
import base64
import builtins
import gc
import math
import os
import resource
import select
import signal
import stat
import sys
import traceback
from _io import (  # no abstract classes: fast
    BufferedRandom,
    BufferedReader,
    BufferedWriter,
    TextIOWrapper,
    _BufferedIOBase,
    _IOBase,
)
from _signal import signal as handle  # without the enumerations that the module `signal` wraps its results in
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import NamedTuple, NoReturn, TypeAlias

from retcon.sandbox.jail.capture import cut_middle
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.messages import Bounds, RunCall
from retcon.sandbox.jail.program import (
    compile_program,
    exit_code,
    flush_all,
    print_exception,
    register_source,
    reseed,
    type_name,
    warm_up,
    write,
    write_error,
    write_main_when_spawning,
)

FILENAME = "<python>"
RECORD_FD = 3
NAME_CHARS = 200  # of an exception's class, which the program may have named itself
FDS = 256  # more than a worker ever has open
AT_ONCE = 1 << 18  # characters of a file, whole groups of four: decoding it takes none of the program's memory
MEMORY_HEADROOM = 32 << 20  # a program that ran out of memory still has to report it
ROOM = 1 << 20  # bytes of it that the report needs at least
_GIVEN = dict(vars(builtins))
__builtins__ = _GIVEN  # type: ignore[assignment]  # of the functions here: the program may replace the others
_limit, _set_limit, _poll, _status = resource.getrlimit, resource.setrlimit, select.poll, os.fstat
_MEMORY, _raised, _block = resource.RLIMIT_AS, sys.exception, bytes
Streams: TypeAlias = tuple[int, ...]
"""File descriptors for stdin, stdout, stderr and the record; of a session, the channel of `HostFunctions` last."""


def install_cpu_handler() -> None:
    """At the CPU limit flush output, then die of SIGXCPU. The kernel's SIGKILL comes a second later."""
    handle(signal.SIGXCPU, _die_flushed)


def _die_flushed(number: int, _frame: object) -> None:
    try:
        flush_all(())
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def prepare() -> None:
    """Warm up the zygote once, before it forks; see `program.warm_up`."""
    warm_up()
    os.dup2(0, 0, inheritable=True)  # a function's first use builds its argument parser
    math.ceil(1.0)
    resource.setrlimit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS))


class Setting(NamedTuple):
    """Settings of a worker's calls. baseline: bytes of address space that a process is forked with."""

    confinement: Confinement
    scratch: str
    baseline: int


def run(call: RunCall, token: bytes, streams: Streams, setup: int, setting: Setting) -> NoReturn:
    """Run the call and end the process. token: marks the record as the wrapper's.

    setup: a pipe for the reason if the program cannot be started. It is closed before the program runs, which thus
    cannot fake that.
    """
    leave = os._exit  # the program may replace the module's
    code = 1
    try:
        try:
            enter(call.files, call.limits, streams, setting)
        except BaseException as error:
            report_setup_error(setup, error)
            raise
        os.closerange(RECORD_FD + 1, FDS)
        reseed(call.seed)
        write_main_when_spawning(call.code, FILENAME, setting.scratch)
        code = _program(call.code, token, call.limits.output_bytes, call.echo)
    finally:
        leave(code)


def report_setup_error(setup: int, error: BaseException) -> None:
    """Report a failed setup of a process through its parent's pipe."""
    os.write(setup, f"{type(error).__name__}: {error}".encode(errors="replace")[: select.PIPE_BUF])


def enter(
    files: dict[str, str],
    limits: Bounds,
    streams: Streams,
    setting: Setting,
    confine: Callable[[Confinement], None] = Confinement.confine_call,
) -> None:
    """Set up the process of a call: streams, user, folder, files (base64), limits; `confine` last."""
    os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target, inheritable=target < RECORD_FD)
    handle(signal.SIGINT, signal.default_int_handler)
    install_cpu_handler()
    confinement = setting.confinement
    confinement.take_user(setting.scratch)
    os.chdir(setting.scratch)
    sys.path.insert(0, setting.scratch)  # like a script's folder; only in this process
    for name, content in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            for start in range(0, len(content), AT_ONCE):
                file.write(base64.b64decode(content[start : start + AT_ONCE]))
    memory = setting.baseline + (limits.memory_mb << 20)
    cpu = math.ceil(limits.cpu_seconds)
    _set_rlimit(resource.RLIMIT_AS, memory, memory + MEMORY_HEADROOM)
    _set_rlimit(resource.RLIMIT_CPU, cpu, cpu + 1)
    _set_rlimit(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _set_rlimit(resource.RLIMIT_NPROC, confinement.tasks + limits.processes)
    confine(confinement)
    _set_rlimit(resource.RLIMIT_NOFILE, limits.open_files)
    gc.enable()


def _set_rlimit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, at most the present hard limit, which cannot be raised."""
    most = resource.getrlimit(kind)[1]
    wanted = (soft, soft if hard is None else hard)
    resource.setrlimit(kind, wanted if most < 0 else (min(wanted[0], most), min(wanted[1], most)))


def _program(source: str, token: bytes, output_bytes: int, echo: bool) -> int:
    """Run the program as Python would; return its exit code. echo: keep the last expression's value."""
    streams = (sys.stdout, sys.stderr)  # the program may put others in their place
    own, process, keep, put = os.getpid(), os.getpid, output_bytes, write
    raised, value, code, memory = "", "", 0, _limit(_MEMORY)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        register_source(source, FILENAME)
        value = _run_as_main(source, main, echo)
    except SystemExit as stop:
        code = exit_code(stop, streams)
        with suppress(BaseException):
            _exit_interpreter()
    except BaseException as error:  # noqa: BLE001 - whatever the program raised is its result
        code, raised = 1, type_name(error)[:NAME_CHARS]
        if process() == own:  # at once: the following runs the program's code, which may end the process
            put(RECORD_FD, token + raised.encode("utf-8", "replace") + b"\0" + token)
        if raised == "MemoryError":
            traceback.clear_frames(error.__traceback__)
            main.__dict__.clear()
        flush_all(streams)
        if raised != "MemoryError":  # a long program's lines may not fit then
            with suppress(BaseException):  # its data and a long traceback may exceed the limit together
                _set_limit(_MEMORY, memory)
            register_source(source, FILENAME)  # once more, as the program may have emptied the cache
        _show(error, raised)
        if raised != "MemoryError":  # then nothing is left that could run
            with suppress(BaseException):
                _exit_interpreter()
    flush_all(streams)
    if not raised and process() == own:  # not a fork of the program that reached its end too
        put(RECORD_FD, token + f"\0{cut_middle(value, keep)}".encode("utf-8", "replace") + token)
    _close_open_files()
    return code


def _show(error: BaseException, name: str) -> None:
    try:
        print_exception(error, __file__)
    except BaseException:  # noqa: BLE001 - the program broke the traceback module, or the error's own methods raise
        write_error(f"{name}\n")


def record_bytes(output_bytes: int) -> int:
    """Return the most bytes of a record: a name, or a value of up to 4 bytes per character."""
    return 4 * max(output_bytes, NAME_CHARS) + len("\0=")


def _run_as_main(source: str, main: ModuleType, echo: bool) -> str:
    """Run the program, and its exit handlers if it ends normally; return `=` and the last expression's repr, or "".

    With its memory full to the last byte, not even a Python function can be called. So the headroom for the report is
    unlocked by code that needs no memory, and freed if the program has filled that as well.
    """
    value, names = "", main.__dict__
    names.update(__builtins__=builtins, __file__=FILENAME)
    room = (_limit(_MEMORY)[1],) * 2
    try:
        try:
            body, last = compile_program(source, FILENAME, echo)
            exec(body, names)
            if last is not None:
                result = eval(last, names)
                if result is not None:
                    value = "=" + repr(result)
            _exit_interpreter()
        finally:
            error = _raised()
            try:  # noqa: SIM105 - `suppress` would allocate an object
                _set_limit(_MEMORY, room)
            except BaseException:  # noqa: BLE001, S110 - the program has lowered it for good
                pass
            try:
                _block(ROOM)
            except MemoryError:
                names.clear()
                if error is not None:
                    error.__traceback__ = None
    except BaseException:
        vars(builtins).update(_GIVEN)  # the following runs code of the standard library
        raise
    return value


def _exit_interpreter() -> None:
    """Do what an interpreter does at its end: join non-daemon threads, run exit handlers."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()


def _close_open_files() -> None:
    """Close the files that the program left open, as an interpreter does at exit; wrappers before the wrapped. The
    worker's own objects were frozen before the fork, and are not among these."""
    with suppress(BaseException):  # there may be no memory left
        if not any(fd > RECORD_FD and _is_file(fd) for fd in open_descriptors()):
            return  # without a scan of all objects
        for one in sorted((one for one in gc.get_objects() if issubclass(type(one), _IOBase)), key=_closing_order):
            with suppress(BaseException):
                if not _is_read_only(one):
                    one.close()


def open_descriptors() -> list[int]:
    """Return this process's open file descriptors, by one `poll`."""
    fds = range(_limit(resource.RLIMIT_NOFILE)[1])
    poller = _poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    try:
        closed = {fd for fd, events in poller.poll(0) if events & select.POLLNVAL}
    except OSError:  # the limit was lowered below the open ones
        closed = set()
    return [fd for fd in fds if fd not in closed]


def _is_file(fd: int) -> bool:
    """Whether it is a file: the other end of a pipe or socket does not outlive the program."""
    with suppress(OSError):
        return stat.S_ISREG(_status(fd).st_mode)
    return False


def _is_read_only(file: _IOBase) -> bool:
    """Whether a file is read-only: closing one that a thread reads from would wait for its lock."""
    return issubclass(type(getattr(file, "buffer", file)), BufferedReader)


def _closing_order(file: object) -> int:
    """Return a file's place in closing order: text, compressed files, buffers, the rest."""
    kind = type(file)
    if issubclass(kind, TextIOWrapper):
        return 0
    return 3 if not issubclass(kind, _BufferedIOBase) else 2 if kind in (BufferedWriter, BufferedRandom) else 1
