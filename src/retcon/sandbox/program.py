"""Running a text as a program: compiled with its last expression apart, and told apart from its wrapper when it raises.

Standard library only: the workers import it. Its parts run beside the program, which may have replaced anything.
"""

from __future__ import annotations

import _ast
import ast  # noqa: F401 - traceback imports it to mark the place of an error, and each call would do it anew
import builtins
import linecache
import sys
import traceback
from os import write as _write  # the program may replace the module's
from types import CodeType, TracebackType
from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions here: the program may replace the others


def compile_program(source: str, filename: str, echo: bool) -> tuple[CodeType, CodeType | None]:
    """(all but a last expression, that expression), so that a syntax error comes before anything has run."""
    tree: Any = compile(source, filename, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if echo and tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = compile(_ast.Expression(tree.body.pop().value), filename, "eval", dont_inherit=True)
    return compile(tree, filename, "exec", dont_inherit=True), last


def rehearse(rounds: int = 20) -> None:
    """Compile, raise and report often enough that the interpreter has filled its caches and adapted the code for it.

    Before the fork, since every page that is written after it is one to copy, in every call.
    """
    for _ in range(rounds):
        body, _ = compile_program("x = [1, 'a']\nraise ValueError(x[0] + 1)\nlen(x)", "<rehearsal>", echo=True)
        try:
            exec(body, {})
        except ValueError as error:
            _report(error, error.__traceback__)


def show_source(source: str, filename: str) -> None:
    """Let tracebacks and `inspect` find the program's lines."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def exit_code(stop: SystemExit, streams: tuple[Any, Any]) -> int:
    """What `sys.exit` asks for, as Python takes it: a text goes to stderr."""
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    flush_all(streams)
    write_error(f"{code}\n")
    return 1


def print_exception(error: BaseException, wrapper: str) -> None:
    """Python's own traceback, from the program's first frame on. wrapper: the file whose frames are left out."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (wrapper, __file__):
        trace = trace.tb_next
    write_error(_report(error, trace))


def _report(error: BaseException, trace: TracebackType | None) -> str:
    return "".join(traceback.TracebackException(type(error), error, trace, compact=True).format())


def type_name(error: BaseException) -> str:
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def write_error(text: str) -> None:
    write(2, text.encode("utf-8", "backslashreplace"))


def write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:  # the program may have closed it: its exit code still counts
        return


def flush_all(streams: tuple[Any, ...]) -> None:
    """Flush the given streams and those that the program may have put in their place."""
    for stream in (sys.stdout, sys.stderr, *streams):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 - it may be closed, or an object of the program's own
            continue
