"""Batches of programs that only compute, each in one sandbox process.

Starting a process costs ten times what such a program does.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from retcon.core.errors import RetconError
from retcon.core.texts import parse_literal, parse_program
from retcon.sandbox.types import Limits, Result, Sandbox

FAULTS = (RetconError, OSError, ValueError)
"""Errors of a sandbox that are not the program's fault; ValueError: its server refuses a request, such as one for too
many seconds."""
MOST = 64
"""Most programs of a batch."""
LONGEST = 4000
"""Most characters of a program, and of its result, in a batch or a cache."""
_NODES = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Pass, ast.Break, ast.Continue,
    ast.FunctionDef, ast.Lambda, ast.Return, ast.arguments, ast.arg, ast.Call, ast.keyword, ast.Starred, ast.Name,
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.List,
    ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension,
    ast.JoinedStr, ast.FormattedValue, ast.alias,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Syntax of programs in a batch: no classes, handlers or `yield`, through which code could run later."""
_SHOWING = ("format", "gi_", "f_", "tb_", "co_")
"""Prefixes of attributes that show a program's surroundings."""


def leaves_nothing(code: str) -> bool | None:
    """Return whether a deterministic program leaves its process unchanged; None if it is invalid.

    It sets no attribute and imports nothing but `math`, so that all it made goes with its names.
    """
    if len(code) > LONGEST:
        return False
    tree = parse_program(code)
    return None if tree is None else all(map(_leaves_nothing, ast.walk(tree)))


def _leaves_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="type"):
            return False  # makes classes, whose `__del__` would run later
        case ast.Attribute():
            return isinstance(node.ctx, ast.Load) and not node.attr.startswith(_SHOWING)
        case ast.Import():
            return all(one.name == "math" for one in node.names)
        case ast.ImportFrom():
            return node.module == "math"
        case _:
            return isinstance(node, _NODES)


class BatchRunner:
    """Runs waiting programs together. limits: those of a program on its own.

    Only for programs for which `leaves_nothing` is not False.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox = sandbox
        self._limits = replace(limits, cpu_seconds=min(limits.cpu_seconds, 1.0))
        self._driver = Path(__file__).with_name("driver.py").read_text(encoding="utf-8")
        self._waiting: list[tuple[str, bool, asyncio.Future[Result | None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def run(self, code: str, *, valid: bool) -> Result | None:
        """Return a program's result; None if it must run on its own. valid: whether it is Python."""
        ended: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((code, valid, ended))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all())
        return await ended

    async def _run_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            found: Sequence[Result | None] = ()
            try:
                found = await self._run([(code, valid) for code, valid, _ in batch])
            finally:
                for (*_, ended), result in zip_longest(batch, found):
                    if not ended.done():
                        ended.set_result(result)

    async def _run(self, programs: Sequence[tuple[str, bool]]) -> list[Result | None]:
        """Return the programs' results, fewer if the process ended before the last."""
        try:
            done = await self._sandbox.run(
                self._driver, stdin=repr((LONGEST, programs)), limits=self._limits, echo=False, seed=0
            )
        except FAULTS:
            return []
        return [self._as_result(line, done) for line in done.stdout.splitlines()[: len(programs)]]

    def _as_result(self, line: str, done: Result) -> Result | None:
        match parse_literal(line):
            case [str(stdout), str(stderr), value, error_type, float(seconds)]:
                ended = replace(done, error_type=error_type, stdout=stdout, stderr=stderr, value=value, seconds=seconds)
                if error_type is None:
                    return replace(ended, status="ok", exit_code=0)
                return replace(ended, status="error", exit_code=1)
            case _:
                return None
