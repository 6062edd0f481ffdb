"""One call, in the process that the worker forked for it: limits, then the program, then what it raised.

Standard library only. Nothing that runs here is believed: the worker reads how this process ended from the kernel,
and the record that is written at the end can only name an exception and carry the last expression's repr.
"""

from __future__ import annotations

import _ast
import ast  # noqa: F401 - traceback imports it to mark the place of an error, and each call would do it anew
import atexit
import base64
import builtins
import contextlib
import gc
import io
import linecache
import math
import os
import resource
import signal
import sys
import traceback
from types import CodeType, ModuleType
from typing import Any, NamedTuple, NoReturn, TypeAlias

from retcon.sandbox.capture import cut_middle
from retcon.sandbox.isolate import World, become

FILENAME = "<python>"
RECORD_FD = 3
SEEDED = ("numpy.random", "sympy.core.random")
MEMORY_HEADROOM = 32 << 20  # a program that ran out of memory still has to say so
Streams: TypeAlias = tuple[int, int, int, int]
"""File descriptors for stdin, stdout, stderr and the record."""
_PAGE = resource.getpagesize()


def install_cpu_handler() -> None:
    """At the CPU limit: write out what was printed, then die of the signal. The kernel's SIGKILL is a second behind."""
    signal.signal(signal.SIGXCPU, _die_flushed)


def _die_flushed(number: int, _frame: object) -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Setting(NamedTuple):
    """What all calls of a worker share. baseline: bytes of address space of the warm interpreter."""

    world: World
    scratch: str
    baseline: int


def run(call: dict[str, Any], token: bytes, streams: Streams, setting: Setting) -> NoReturn:
    """Run the call and end the process. token: marks the record as the wrapper's."""
    leave = os._exit  # the program may replace the module's
    code = 1
    try:
        _enter(call, streams, setting)
        reseed()
        code = _program(call["code"], token, call["limits"], call["echo"])
    finally:
        leave(code)


def reseed() -> None:
    """Give preloaded generators of random numbers a fresh state, as a fresh import would; `random` does it itself."""
    for name in SEEDED:
        module = sys.modules.get(name)
        if module is not None:
            module.seed()


def _enter(call: dict[str, Any], streams: Streams, setting: Setting) -> None:
    os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target, inheritable=target != RECORD_FD)
    os.closerange(RECORD_FD + 1, 256)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world = setting.world
    if world.become is not None:
        os.chown(setting.scratch, world.become, world.become)
        become(world.become)
    os.chdir(setting.scratch)
    for name, content in call["files"].items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(base64.b64decode(content))
    limits = call["limits"]
    memory = setting.baseline + (limits["memory_mb"] << 20)
    cpu = math.ceil(limits["cpu_seconds"])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + MEMORY_HEADROOM))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_mb"] << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"],) * 2)
    resource.setrlimit(resource.RLIMIT_NPROC, (world.tasks + limits["processes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [FILENAME]
    gc.enable()


def _program(source: str, token: bytes, limits: dict[str, Any], echo: bool) -> int:
    """Run the program as Python would, its last expression kept where `echo`; return the exit code."""
    streams = (sys.stdout, sys.stderr)  # the program may put others in their place
    raised, value, code = "", "", 0
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        value = _run_as_main(source, main, echo)
    except SystemExit as stop:
        code = _exit_code(stop, streams)
    except BaseException as error:  # noqa: BLE001 - whatever the program raised is its result
        code, raised = 1, type.__dict__["__name__"].__get__(type(error))
        if raised == "MemoryError":
            _free_memory(error, main)
        _flush_all(streams)
        _print_exception(error, source)
    _flush_all(streams)
    body = f"{raised}\0{cut_middle(value, limits['output_bytes'])}"
    _write(RECORD_FD, token + body.encode("utf-8", "replace") + token)
    return code


def _run_as_main(source: str, main: ModuleType, echo: bool) -> str:
    """Run the program and its exit handlers; `=` and the repr of its last expression, empty without one."""
    whole, given, to_text = vars(builtins), dict(vars(builtins)), repr
    value = ""
    try:
        body, last = _compile(source, echo)
        exec(body, main.__dict__)
        if last is not None:
            result = eval(last, main.__dict__)
            if result is not None:
                value = "=" + to_text(result)
        _finish()
    finally:
        whole.update(given)  # the program may have replaced what the rest of this file stands on
    return value


def _compile(source: str, echo: bool) -> tuple[CodeType, CodeType | None]:
    """(all but a last expression, that expression), so that a syntax error comes before anything has run."""
    tree: Any = compile(source, FILENAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if echo and tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = compile(_ast.Expression(tree.body.pop().value), FILENAME, "eval", dont_inherit=True)
    return compile(tree, FILENAME, "exec", dont_inherit=True), last


def _finish() -> None:
    """What an interpreter does at its end: wait for threads that are no daemons, run the exit handlers."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()


def _exit_code(stop: SystemExit, streams: tuple[Any, Any]) -> int:
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _flush_all(streams)
    _write_error(f"{code}\n")
    return 1


def _free_memory(error: BaseException, main: ModuleType) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    traceback.clear_frames(error.__traceback__)
    main.__dict__.clear()


def _print_exception(error: BaseException, source: str) -> None:
    """Python's own traceback, from the program's first frame on, with the program's lines."""
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(keepends=True), FILENAME)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    report = traceback.TracebackException(type(error), error, trace, compact=True)
    _write_error("".join(report.format()))


def _write_error(text: str) -> None:
    _write(2, text.encode("utf-8", "backslashreplace"))


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the program may have closed it: its exit code still counts
        while data:
            data = data[os.write(fd, data) :]


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):  # it may be closed, or an object of the program's own
        stream.flush()


def _flush_all(streams: tuple[Any, ...]) -> None:
    for stream in (sys.stdout, sys.stderr, *streams):
        _flush(stream)


def address_space() -> int:
    """Bytes of address space of this process."""
    with io.FileIO("/proc/self/statm") as file:
        return int(file.read().split()[0]) * _PAGE
