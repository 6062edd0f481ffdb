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
from contextlib import suppress
from io import StringIO
from os import write as _write  # the program may replace the module's
from sys import __excepthook__ as _show
from types import CodeType, TracebackType
from typing import Any

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions here: the program may replace the others
_number, _to_text = int.__index__, str  # of an int's own value, whatever its class says


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
    """Let tracebacks, warnings and `inspect` find the program's lines: those that the compiler counts, each with its
    end, on whose length the place of a mark below it depends."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    linecache.cache[filename] = (len(source), None, [f"{line}\n" for line in lines], filename)


def exit_code(stop: SystemExit, streams: tuple[Any, Any]) -> int:
    """What `sys.exit` asks for, as Python takes it, 0 to 255: a text goes to stderr. Raises nothing, whatever methods
    the program gave to what it left with."""
    try:
        code = stop.code
        if code is None:
            return 0
        with suppress(TypeError):  # it is no int, whatever it says of its class
            number = _number(code)  # type: ignore[arg-type]
            return number & 0xFF if -(1 << 63) <= number < 1 << 63 else 255
        flush_all(streams)
        write_error(f"{_to_text(code)}\n")
    except BaseException:  # noqa: BLE001 - its own attribute or `__str__`
        return 1
    return 1


def print_exception(error: BaseException, wrapper: str) -> None:
    """Python's own traceback, from the program's first frame on. wrapper: the file whose frames are left out."""
    if isinstance(error, SyntaxError) and error.text is None:
        _quote(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (wrapper, __file__):
        trace = trace.tb_next
    write_error(_report(error, trace))


def _quote(error: SyntaxError) -> None:
    """Add the line, for which the compiler looked in a file."""
    if isinstance(error.filename, str) and error.filename in linecache.cache and isinstance(error.lineno, int):
        error.text = linecache.getline(error.filename, error.lineno) or None


def _report(error: BaseException, trace: TracebackType | None) -> str:
    told = traceback.TracebackException(type(error), error, trace, compact=True)
    if sys.version_info < (3, 12):
        _suggest(error, told)
    return "".join(told.format())


def _suggest(error: BaseException, told: traceback.TracebackException) -> None:
    """Add "Did you mean" to an error and those that led to it: before 3.12 the interpreter alone knows how to."""
    left: list[tuple[BaseException | None, Any]] = [(error, told)]
    while left:
        one, of = left.pop()
        if one is None or of is None:
            continue
        if type(one) in (NameError, AttributeError):
            of._str = f"{of._str}{_suggestion(one)}"
        if isinstance(one, BaseExceptionGroup):
            left += zip(one.exceptions, of.exceptions or (), strict=False)
        left += (one.__cause__, of.__cause__), (one.__context__, of.__context__)


def _suggestion(error: BaseException) -> str:
    """What the interpreter itself would say: of a copy, raised where the error was, without what led to it."""
    known = {key: value for key in ("name", "obj") if (value := getattr(error, key, None)) is not None}
    copy = type(error)("?", **known)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    had, sys.stderr = getattr(sys, "stderr", None), (written := StringIO())
    try:
        _show(type(error), copy.with_traceback(trace), trace)
    finally:
        sys.stderr = had
    _, found, suggestion = written.getvalue().rstrip("\n").rpartition(f"{type(error).__name__}: ?")
    return suggestion if found else ""


def type_name(error: BaseException) -> str:
    """Never empty: that says that nothing was raised."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name or "Exception"


def write_error(text: str) -> None:
    write(2, text.encode("utf-8", "backslashreplace"))


def write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[_write(fd, rest) :]
    except OSError:  # the program may have closed it: its exit code still counts
        return


def flush_all(streams: tuple[Any, ...]) -> None:
    """Flush the given streams and those that the program may have put in their place."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # noqa: BLE001, S112 - it may be closed, gone, or an object of the program's own
            continue
    for stream in streams:
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 - likewise
            continue
