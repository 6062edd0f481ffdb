"""One call, in the process that the worker forked for it: limits, then the program, then what it raised.

Standard library only. Nothing that runs here is believed: the worker reads how this process ended from the kernel,
and the record that is written at the end can only name an exception and carry the last expression's repr.
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
    rehearse,
    reseed,
    show_source,
    type_name,
    write,
    write_error,
    write_main_when_spawning,
)

FILENAME = "<python>"
RECORD_FD = 3
NAME_CHARS = 200  # of an exception's class, which the program may have made up
FDS = 256  # more than a worker ever has open
AT_ONCE = 1 << 18  # characters of a file, whole groups of four: decoding it takes none of the program's memory
MEMORY_HEADROOM = 32 << 20  # a program that ran out of memory still has to say so
ROOM = 1 << 20  # bytes of it without which nothing can be said
_GIVEN = dict(vars(builtins))
__builtins__ = _GIVEN  # type: ignore[assignment]  # of the functions here: the program may replace the others
_limit, _set_limit, _poll, _status = resource.getrlimit, resource.setrlimit, select.poll, os.fstat
_MEMORY, _raised, _block = resource.RLIMIT_AS, sys.exception, bytes
Streams: TypeAlias = tuple[int, ...]
"""File descriptors for stdin, stdout, stderr and the record; of a session, the channel of `HostFunctions` last."""


def install_cpu_handler() -> None:
    """At the CPU limit: write out what was printed, then die of the signal. The kernel's SIGKILL is a second behind."""
    handle(signal.SIGXCPU, _die_flushed)


def _die_flushed(number: int, _frame: object) -> None:
    try:
        flush_all(())
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def prepare() -> None:
    """In the zygote, before it forks: all that a worker or a call would otherwise do anew. See `program.rehearse`."""
    rehearse()
    os.dup2(0, 0, inheritable=True)  # the first use of a function makes the table of its arguments
    math.ceil(1.0)
    resource.setrlimit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS))


class Setting(NamedTuple):
    """What all calls of a worker share. baseline: bytes of address space that a process is forked with."""

    confinement: Confinement
    scratch: str
    baseline: int


def run(call: RunCall, token: bytes, streams: Streams, setup: int, setting: Setting) -> NoReturn:
    """Run the call and end the process. token: marks the record as the wrapper's.

    setup: a pipe that takes the reason where the program could not be started. It is closed before the program runs,
    which therefore cannot say that it was not.
    """
    leave = os._exit  # the program may replace the module's
    code = 1
    try:
        try:
            enter(call.files, call.limits, streams, setting)
        except BaseException as error:
            tell(setup, error)
            raise
        os.closerange(RECORD_FD + 1, FDS)
        reseed(call.seed)
        write_main_when_spawning(call.code, FILENAME, setting.scratch)
        code = _program(call.code, token, call.limits.output_bytes, call.echo)
    finally:
        leave(code)


def tell(setup: int, error: BaseException) -> None:
    """Why a process could not be set up, in a pipe that its parent reads to its end."""
    os.write(setup, f"{type(error).__name__}: {error}".encode(errors="replace")[: select.PIPE_BUF])


def enter(
    files: dict[str, str],
    limits: Bounds,
    streams: Streams,
    setting: Setting,
    confine: Callable[[Confinement], None] = Confinement.confine_call,
) -> None:
    """Become the process of a call: its streams, user, folder, files (base64) and limits; `confine` last."""
    os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target, inheritable=target < RECORD_FD)
    handle(signal.SIGINT, signal.default_int_handler)
    install_cpu_handler()
    confinement = setting.confinement
    confinement.take_user(setting.scratch)
    os.chdir(setting.scratch)
    sys.path.insert(0, setting.scratch)  # as a script's folder is; in this process alone, which is the program's
    for name, content in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            for start in range(0, len(content), AT_ONCE):
                file.write(base64.b64decode(content[start : start + AT_ONCE]))
    memory = setting.baseline + (limits.memory_mb << 20)
    cpu = math.ceil(limits.cpu_seconds)
    _bound(resource.RLIMIT_AS, memory, memory + MEMORY_HEADROOM)
    _bound(resource.RLIMIT_CPU, cpu, cpu + 1)
    _bound(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _bound(resource.RLIMIT_NPROC, confinement.tasks + limits.processes)
    confine(confinement)
    _bound(resource.RLIMIT_NOFILE, limits.open_files)
    gc.enable()


def _bound(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, as far as the machine's own leaves it: that one cannot be raised."""
    most = resource.getrlimit(kind)[1]
    wanted = (soft, soft if hard is None else hard)
    resource.setrlimit(kind, wanted if most < 0 else (min(wanted[0], most), min(wanted[1], most)))


def _program(source: str, token: bytes, output_bytes: int, echo: bool) -> int:
    """Run the program as Python would, its last expression kept where `echo`; return the exit code."""
    streams = (sys.stdout, sys.stderr)  # the program may put others in their place
    own, process, keep, put = os.getpid(), os.getpid, output_bytes, write
    raised, value, code, memory = "", "", 0, _limit(_MEMORY)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        show_source(source, FILENAME)
        value = _run_as_main(source, main, echo)
    except SystemExit as stop:
        code = exit_code(stop, streams)
        with suppress(BaseException):
            _finish()
    except BaseException as error:  # noqa: BLE001 - whatever the program raised is its result
        code, raised = 1, type_name(error)[:NAME_CHARS]
        if process() == own:  # at once: what follows runs code of the program's, which may end the process
            put(RECORD_FD, token + raised.encode("utf-8", "replace") + b"\0" + token)
        if raised == "MemoryError":
            traceback.clear_frames(error.__traceback__)
            main.__dict__.clear()
        flush_all(streams)
        if raised != "MemoryError":  # for which a long program's lines may have been too much
            with suppress(BaseException):  # what it holds and a long traceback might be over the limit together
                _set_limit(_MEMORY, memory)
            show_source(source, FILENAME)  # once more, as the program may have emptied the cache
        _show(error, raised)
        if raised != "MemoryError":  # of which nothing is left that could run
            with suppress(BaseException):
                _finish()
    flush_all(streams)
    if not raised and process() == own:  # not a fork of the program's that came to its end too
        put(RECORD_FD, token + f"\0{cut_middle(value, keep)}".encode("utf-8", "replace") + token)
    _write_out()
    return code


def _show(error: BaseException, name: str) -> None:
    try:
        print_exception(error, __file__)
    except BaseException:  # noqa: BLE001 - the program broke the traceback module, or the error's own methods end it
        write_error(f"{name}\n")


def record_bytes(output_bytes: int) -> int:
    """The most that a record takes: a name, or as many characters of a value, of up to 4 bytes each."""
    return 4 * max(output_bytes, NAME_CHARS) + len("\0=")


def _run_as_main(source: str, main: ModuleType, echo: bool) -> str:
    """Run the program, and its exit handlers where it came to its end; `=` and the repr of its last expression, empty
    without one.

    Where it has filled its memory to the last byte, not even a function of Python's can be called. So the room that is
    kept to tell of its end is taken by what needs none; and made, where the program has taken that as well.
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
            _finish()
        finally:
            error = _raised()
            try:  # noqa: SIM105 - `suppress` is an object to be made
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
        vars(builtins).update(_GIVEN)  # what follows runs code of the standard library
        raise
    return value


def _finish() -> None:
    """What an interpreter does at its end: wait for threads that are no daemons, run the exit handlers."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()


def _write_out() -> None:
    """Write out the files that the program has left open, as an interpreter does when it is taken down. What wraps
    another file comes before that. The worker's own objects were set aside before the fork, and are not among these."""
    with suppress(BaseException):  # there may be no memory left
        if not any(fd > RECORD_FD and _is_file(fd) for fd in open_descriptors()):
            return  # without a look at all that the program has made
        for one in sorted((one for one in gc.get_objects() if issubclass(type(one), _IOBase)), key=_depth):
            with suppress(BaseException):
                if not _only_reads(one):
                    one.close()


def open_descriptors() -> list[int]:
    """Poll tells all that are not open."""
    fds = range(_limit(resource.RLIMIT_NOFILE)[1])
    poller = _poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    try:
        closed = {fd for fd, said in poller.poll(0) if said & select.POLLNVAL}
    except OSError:  # the limit was lowered below what is open
        closed = set()
    return [fd for fd in fds if fd not in closed]


def _is_file(fd: int) -> bool:
    """Rather than a pipe or a socket, whose other end does not outlive the program."""
    with suppress(OSError):
        return stat.S_ISREG(_status(fd).st_mode)
    return False


def _only_reads(file: _IOBase) -> bool:
    """A thread that waits for what comes holds its lock: to close it would be to wait as well."""
    return issubclass(type(getattr(file, "buffer", file)), BufferedReader)


def _depth(file: object) -> int:
    """Text over compressed files over buffers over the rest."""
    kind = type(file)
    if issubclass(kind, TextIOWrapper):
        return 0
    return 3 if not issubclass(kind, _BufferedIOBase) else 2 if kind in (BufferedWriter, BufferedRandom) else 1
