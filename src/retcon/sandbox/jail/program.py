"""Running a text as a program: its last expression, errors and tracebacks.

Standard library only: the workers import it. Its parts run in the program's process, which may have replaced anything.
"""

from __future__ import annotations

import _ast
import ast  # noqa: F401 - traceback imports it to mark the place of an error, and each call would do it anew
import builtins
import contextlib
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import StringIO
from os import write as _write  # the program may replace the module's
from sys import __excepthook__ as _show
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # of the functions here: the program may replace the others
_number, _to_text = int.__index__, str  # of an int's own value, whatever its class says


def compile_program(source: str, filename: str, echo: bool) -> tuple[CodeType, CodeType | None]:
    """Compile a program, and its last expression separately, before anything runs."""
    tree: Any = compile(source, filename, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if echo and tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = compile(_ast.Expression(tree.body.pop().value), filename, "eval", dont_inherit=True)
    return compile(tree, filename, "exec", dont_inherit=True), last


def warm_up(rounds: int = 20) -> None:
    """Warm up the interpreter's caches by compiling, raising and reporting.

    Before the fork, since every page that is written after it has to be copied, in every call.
    """
    for _ in range(rounds):
        body, _ = compile_program("x = [1, 'a']\nraise ValueError(x[0] + 1)\nlen(x)", "<rehearsal>", echo=True)
        try:
            exec(body, {})
        except ValueError as error:
            _report(error, error.__traceback__)


def register_source(source: str, filename: str) -> None:
    """Let tracebacks, warnings and `inspect` find the program's lines. Line ends stay, as the place of a mark depends
    on their length."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    linecache.cache[filename] = (len(source), None, [f"{line}\n" for line in lines], filename)


def exit_code(stop: SystemExit, streams: tuple[Any, Any]) -> int:
    """Return the exit code of `sys.exit` as Python does, 0 to 255; a text goes to stderr. Raises nothing, whatever
    methods the program gave to its value."""
    try:
        code = stop.code
        if code is None:
            return 0
        with suppress(TypeError):  # not an int, whatever its class claims
            number = _number(code)  # type: ignore[arg-type]
            return number & 0xFF if -(1 << 63) <= number < 1 << 63 else 255
        flush_all(streams)
        write_error(f"{_to_text(code)}\n")
    except BaseException:  # noqa: BLE001 - its own attribute or `__str__`
        return 1
    return 1


def print_exception(error: BaseException, wrapper: str) -> None:
    """Print Python's traceback from the program's first frame on. wrapper: file whose frames are left out."""
    write_error(format_exception(error, error.__traceback__, wrapper))


def format_exception(error: BaseException, trace: TracebackType | None, wrapper: str) -> str:
    """Format what `print_exception` prints. trace: the error's own, or its later part."""
    if isinstance(error, SyntaxError) and error.text is None:
        _quote(error)
    while trace is not None and trace.tb_frame.f_code.co_filename in (wrapper, __file__):
        trace = trace.tb_next
    return _report(error, trace)


def _quote(error: SyntaxError) -> None:
    """Add the source line, which the compiler could not find in a file."""
    if isinstance(error.filename, str) and error.filename in linecache.cache and isinstance(error.lineno, int):
        error.text = linecache.getline(error.filename, error.lineno) or None


def _report(error: BaseException, trace: TracebackType | None) -> str:
    report = traceback.TracebackException(type(error), error, trace, compact=True)
    if sys.version_info < (3, 12):
        _suggest(error, report)
    return "".join(report.format())


def _suggest(error: BaseException, report: traceback.TracebackException) -> None:
    """Add "Did you mean" to an error and its causes, which before 3.12 only the interpreter itself can."""
    left: list[tuple[BaseException | None, Any]] = [(error, report)]
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
    """Return the interpreter's own suggestion, from a copy raised at the same place without causes."""
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
    """Return an error's class name; never empty, which would mean no error."""
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
    """Flush the given streams, and any replacements by the program."""
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


Change = Callable[[ModuleType], None]


def call_after_import(changes: Mapping[str, Change]) -> None:
    """Call each function with its module, now or once it is loaded.

    A module without the expected attributes is the program's own of that name, and stays unchanged.
    """
    later = {}
    for name, change in changes.items():
        if name in sys.modules:
            _apply(change, sys.modules[name])
        else:
            later[name] = change
    if later:
        sys.meta_path.insert(0, _ImportHook(later))


def _apply(change: Change, module: ModuleType) -> None:
    with contextlib.suppress(AttributeError):
        change(module)


class _ImportHook:
    """Finder in `sys.meta_path` that changes modules once they are loaded."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._change_after(spec.loader, self._changes[name])
                return spec
        return None

    def _change_after(self, loader: Loader, change: Change) -> None:
        load = loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _apply(change, module)

        loader.exec_module = load_and_change  # type: ignore[method-assign]


NUMPYS = ("numpy.random", "sympy.core.random")
"""Modules with generators of 32-bit seeds."""
NAMES = ("random", *NUMPYS)


def reseed(seed: int | None = None) -> None:
    """Seed preloaded random number generators by `seed`, or freshly.

    Others are seeded when they are imported; `random` seeds itself freshly. numpy gets a number also for fresh states:
    without one its seeding takes five times as long, in each call, whether it draws a number or not.
    """
    if seed is None:
        for name in NUMPYS:
            if name in sys.modules:
                _seed_module(sys.modules[name], int.from_bytes(os.urandom(4), "big"))
        return
    call_after_import(dict.fromkeys(NAMES, partial(_seed_module, seed=seed)))


def _seed_module(module: ModuleType, seed: int) -> None:
    module.seed(seed & 0xFFFFFFFF if module.__name__ in NUMPYS else seed)


# Processes that `multiprocessing` spawns, which read the program from a file.
#
# A call gets that file when it first spawns one. A session's code is in no file: there `multiprocessing` forks, and the
# other start methods are refused as on a system that lacks them.

MAIN = "init_main_from_path"


def write_main_when_spawning(source: str, filename: str, folder: str) -> None:
    """Write the program to `folder` when it first spawns a process. filename: of its `__main__`."""
    call_after_import({"multiprocessing.spawn": partial(_write_main, source, filename, folder)})


def forbid_spawning() -> None:
    """Allow only `fork` as start method; for sessions."""
    call_after_import({"multiprocessing.context": _fork_only})


def _write_main(source: str, filename: str, folder: str, module: ModuleType) -> None:
    prepare = module.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        if data.get(MAIN, "").endswith(filename):
            data[MAIN] = f"{folder}/{filename}"
            with open(data[MAIN], "wb") as file:
                file.write(source.encode("utf-8", "surrogatepass"))
        return data

    module.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


def _fork_only(module: ModuleType) -> None:
    def refuse(context: Any) -> NoReturn:
        raise ValueError(
            f"the start method {context._name!r} cannot be used in a session, whose code is in no file: use "
            "multiprocessing.get_context('fork')"
        )

    refuse.__code__ = refuse.__code__.replace(co_filename="<sandbox>")  # a traceback shows nothing of this package
    module.SpawnContext._check_available = module.ForkServerContext._check_available = refuse
    module._default_context._default_context = module._concrete_contexts["fork"]  # it is forkserver since Python 3.14
