"""Programs that were called before: what one came to, where that follows from its text alone.

The rollouts of a group call the same few programs over and over, and so do those of an evaluation. Nothing that reads a
clock, random numbers, files or what is outside is among them, so the answer is one that running it again would give.
"""

from __future__ import annotations

import ast
import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from retcon.core.programs import parsed
from retcon.sandbox.types import Limits, Result

MODULES = frozenset({
    "bisect", "cmath", "collections", "decimal", "fractions", "functools", "heapq", "itertools", "math", "numbers",
    "operator", "re", "string", "textwrap",
})  # fmt: skip
"""What a program may import, and still follow from its text."""
_REACHING = frozenset({
    "attrgetter", "bltns", "builtins", "f_builtins", "f_globals", "f_locals", "get_field", "methodcaller", "os", "sys",
})  # fmt: skip
"""Names, of whatever, by which it may get at more than it says."""
_BUILTINS = frozenset({
    "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals", "hash", "help", "id", "input",
    "license", "locals", "memoryview", "open", "setattr", "vars",
})  # fmt: skip
"""The same, or what differs from one process to the next, among what needs no import."""
_COMPILING = ("SyntaxError", "IndentationError", "TabError")
LONGEST = 4000
"""Characters of a program, and of what it came to, that are kept at most."""


class Repeats:
    """What up to `most` programs came to, those that were called last. limits: under which all of them run."""

    def __init__(self, limits: Limits, most: int = 8192) -> None:
        self._limits, self._most = limits, most
        self._known: OrderedDict[str, Result] = OrderedDict()
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self, code: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """What `call`, which runs the program, gives, or gave before: then in 0 seconds. One that is running is waited
        for; where that comes to what cannot be kept (most limits, a fault), the program runs once more."""
        if len(code) > LONGEST:
            return await call()
        if code in self._running:
            await asyncio.wait([self._running[code]])
        if (known := self._known.get(code)) is not None:
            self._known.move_to_end(code)
            return replace(known, seconds=0.0)
        runs = follows_from_text(code)
        if runs is False:
            return await call()
        ended = asyncio.get_running_loop().create_future()
        first = self._running.setdefault(code, ended) is ended
        try:
            result = await call()
            if self._settled(result) and (runs or result.error_type in _COMPILING):
                self._keep(code, result)
            return result
        finally:
            if first:
                del self._running[code]
                ended.set_result(None)

    def _settled(self, result: Result) -> bool:
        """Whether it ended by itself, or had used up its CPU time: no signal, no fault, and not the wall's clock, which
        goes by what else the machine does."""
        if result.status == "timeout":
            return 0 < result.seconds < self._limits.wall_seconds
        by_itself = result.exit_code is not None and result.exit_code >= 0
        return result.status == "ok" or (result.status == "error" and by_itself and result.error_type != "MemoryError")

    def _keep(self, code: str, result: Result) -> None:
        if len(result.stdout) + len(result.stderr) + len(result.value or "") <= LONGEST:
            self._known[code] = result
            if len(self._known) > self._most:
                self._known.popitem(last=False)


def follows_from_text(code: str) -> bool | None:
    """Whether a fresh interpreter can do but one thing with a program, time, limits and the addresses of objects (the
    order of a set of them) aside; None where Python does not take it, as far as ours says: then nothing of it runs.

    True errs on the side of caution, and is no protection: the sandbox contains what is run, this only decides whether
    it runs again.
    """
    tree = parsed(code)
    return None if tree is None else all(map(_plain, ast.walk(tree)))


def _plain(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            known = name not in _REACHING and name not in _BUILTINS
            return known and (name == "__name__" or not name.startswith("__"))
        case ast.Attribute(attr=name):
            return name not in _REACHING and not name.startswith("_")
        case ast.MatchClass(kwd_attrs=names):
            return not any(name in _REACHING or name.startswith("_") for name in names)
        case ast.Import(names=names):
            return all(one.name.partition(".")[0] in MODULES for one in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            known = not level and (module or "").partition(".")[0] in MODULES
            return known and not any(one.name.startswith("_") or one.name in _REACHING for one in names)
        case _:
            return True
