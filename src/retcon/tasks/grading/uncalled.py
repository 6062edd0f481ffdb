"""Tests in Python that wait for a runner: functions and classes that nothing in the tests calls.

As they stand they pass every program. Each is called instead, as pytest and unittest would, as a case of its own.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from retcon.core.programs import FILENAME, parsed

_RUNNERS = ("unittest", "pytest")
_RUN = ("main", "run")
_ANYTHING = {"exec", "eval", "globals", "locals", "vars", "__main__"}
"""By which what the answer or the tests define can be reached without its name."""
_BY_PYTEST = ("setup_module", "setup_function", "setup_class", "setup_method")
_SUITE = "__import__('unittest').TestSuite([{name}({method!r})]).debug()"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Defined = Function | ast.ClassDef
_DEFINES = (Defined, ast.Import, ast.ImportFrom, ast.Pass)


@dataclass(frozen=True, slots=True)
class Piece:
    """checks: whether the Python does anything by which an answer can fail, but for what it only defines. calls: of
    those definitions that are tests, what calls each."""

    code: str
    checks: bool = True
    calls: Sequence[str] = ()


def pieces_of(codes: Sequence[str]) -> list[Piece]:
    """Pieces of Python that run one after another, those that check nothing without what would hand them to a runner.
    What is too deep for the parser is taken to check.

    Raises ValueError for what is no Python, and by its name for a test that nothing calls, and that cannot be called
    without more ado.
    """
    trees = [_tree(code) for code in codes]
    known = _Known([tree for tree in trees if tree is not None])
    checking = [tree is None or any(map(known.checks, tree.body)) for tree in trees]
    doing = (
        statement
        for tree, checks in zip(trees, checking, strict=True)
        for statement in (tree.body if tree is not None and checks else ())
        if not isinstance(statement, _DEFINES)
    )
    called = {id(node) for node in known.reached(doing)}
    found = []
    for code, tree, checks in zip(codes, trees, checking, strict=True):
        if tree is None or checks:
            found.append(Piece(code))
            continue
        waiting = [node for node in _flat(tree.body) if isinstance(node, Defined) and id(node) not in called]
        calls = tuple(call for node in waiting if known.defined[node.name] is node for call in known.calls(node))
        without = _WithoutRunners(known)
        plain = without.visit(tree)  # written anew only where it has to be, as Python cannot write all that it reads
        found.append(Piece(ast.unparse(plain) if without.found else code, False, calls))
    return found


def is_python(code: str) -> bool:
    """Whether there is any, and it can be read as such."""
    tree = parsed(code)
    return tree is not None and bool(tree.body)


def defines(code: str, name: str) -> bool:
    """Whether Python binds a name at its top level. True for what is too deep for the parser. Raises ValueError for
    what is no Python."""
    tree = _tree(code)
    return tree is None or name in _Known([tree]).bound


def _tree(code: str) -> ast.Module | None:
    """None for what is too deep for the parser. Raises ValueError for what is no Python, which no answer passes."""
    tree = parsed(code)
    if tree is None:
        try:
            ast.parse(code, FILENAME)
        except SyntaxError as error:
            version = ".".join(map(str, sys.version_info[:2]))
            raise ValueError(f"they are no Python {version}: {error.msg}, line {error.lineno}") from None
        except (ValueError, RecursionError, MemoryError):
            pass
    return tree


class _Known:
    """What the pieces define, the last of each name, and which names they bind. runners: names of what runs tests by
    itself, or was made by it."""

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self.defined: dict[str, Defined] = {}
        self.bound: set[str] = set()
        self._runners: set[str] = set()
        self._places: dict[int, int] = {}
        for statement in (each for tree in trees for each in _flat(tree.body)):
            if isinstance(statement, Defined):
                self.defined[statement.name] = statement
                self._places[id(statement)] = len(self._places)
                self.bound.add(statement.name)
                continue
            self.bound |= _stored(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)
            elif isinstance(statement, ast.Assign) and self._by_runner(statement.value):
                self._runners |= _stored(statement)

    def checks(self, statement: ast.stmt) -> bool:
        """Whether it can fail because of an answer, other than by not coming to its end where it assigns."""
        if isinstance(statement, _DEFINES):
            return False
        there = (self.bound | _stored(statement) | {*dir(builtins), "__file__"}) - _ANYTHING
        if isinstance(statement, ast.If | ast.Try):
            condition = _loaded(statement.test) if isinstance(statement, ast.If) else set()
            return not condition <= there or any(map(self.checks, _flat([statement])))
        if isinstance(statement, ast.Assign | ast.Expr) and self._by_runner(statement.value):
            return False
        assigns = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        if _asserts(statement) or (not assigns and not _loaded(statement) <= there):
            return True  # the latter does something with what the answer defines
        return any(self._is_test(node) or _asserts(node) for node in self.reached([statement]))

    def reached(self, nodes: Iterable[ast.AST]) -> Iterator[Defined]:
        """The definitions that are named in these, and in those."""
        names = {name for node in nodes for name in _loaded(node)}
        seen: set[str] = set()
        while names:
            name = names.pop()
            seen.add(name)
            if (node := self.defined.get(name)) is not None:
                yield node
                names |= _loaded(node) - seen

    def calls(self, node: Defined) -> Iterator[str]:
        """What calls a test, once for each method of a class; nothing for what is no test."""
        if node.name in _BY_PYTEST:
            raise ValueError(f"'{node.name}' is called by pytest alone: call it, or make it part of the tests")
        if not self._is_test(node):
            return
        if not isinstance(node, ast.ClassDef):
            _refuse_arguments(node, node.name, 0)
            yield _call(node, node.name)
            return
        methods = self._methods(node)
        for name, method in methods.items():
            if self._is_case(node):
                yield _SUITE.format(name=node.name, method=name)
            else:
                _refuse_arguments(method, f"{node.name}.{name}", 1)
                yield _call(method, f"{node.name}().{name}")

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            module = (statement.module or "") if isinstance(statement, ast.ImportFrom) else alias.name
            name = alias.asname or alias.name.partition(".")[0]
            self.bound.add(name)
            if module.partition(".")[0] in _RUNNERS:
                self._runners.add(name)

    def runs(self, node: ast.AST) -> bool:
        """Whether it has unittest or pytest run the tests, which ends the interpreter, or says nothing."""
        return isinstance(node, ast.Expr) and self._by_runner(node.value) and _path(node.value)[-1] in _RUN

    def _by_runner(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and _path(node)[0] in self._runners

    def _is_test(self, node: Defined) -> bool:
        if isinstance(node, ast.ClassDef):
            return bool(self._methods(node)) and (node.name.startswith("Test") or self._is_case(node))
        return node.name.startswith("test")

    def _is_case(self, node: ast.ClassDef) -> bool:
        return any(
            path[-1].endswith("TestCase") or any(self._is_case(base) for base in self._own(path[-1], node))
            for path in map(_path, node.bases)
        )

    def _methods(self, node: ast.ClassDef) -> dict[str, Function]:
        """Its tests, and those of the classes here that it comes from."""
        found: dict[str, Function] = {}
        for base in reversed(node.bases):
            for own in self._own(_path(base)[-1], node):
                found |= self._methods(own)
        for item in node.body:
            if isinstance(item, Function) and item.name.startswith("test"):
                found[item.name] = item
            elif isinstance(item, Function) and item.name in _BY_PYTEST:
                raise ValueError(f"'{node.name}.{item.name}' is called by pytest alone: make it a unittest.TestCase")
        return found

    def _own(self, name: str, derived: ast.ClassDef) -> Iterator[ast.ClassDef]:
        base = self.defined.get(name)
        if isinstance(base, ast.ClassDef) and self._places[id(base)] < self._places[id(derived)]:
            yield base


class _WithoutRunners(ast.NodeTransformer):
    """found: whether there was anything to take away."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self.found = False

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, Defined):
            return node
        if self._known.runs(node):
            self.found = True
            return ast.Pass()
        return self.generic_visit(node)


def _flat(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """The statements, and in place of an `if` or `try` those in it."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            parts = (getattr(node, part, []) for part in ("body", "handlers", "orelse", "finalbody"))
            yield from _flat(child for part in parts for child in part)
        elif isinstance(node, ast.stmt):
            yield node


def _stored(node: ast.AST) -> set[str]:
    """The names that a statement binds."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _asserts(node: ast.AST) -> bool:
    """Whether it says that something is wrong."""
    return any(
        isinstance(each, ast.Assert | ast.Raise)
        or (isinstance(each, ast.Call) and _path(each)[-1].startswith(("assert", "exit", "_exit")))
        for each in ast.walk(node)
    )


def _path(node: ast.expr) -> list[str]:
    """The names of `a.b(…).c`, the first one "" where it begins with none."""
    found: list[str] = []
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
            node = node.value
        else:
            return [node.id if isinstance(node, ast.Name) else "", *reversed(found)]


def _call(node: Function, name: str) -> str:
    return f"__import__('asyncio').run({name}())" if isinstance(node, ast.AsyncFunctionDef) else f"{name}()"


def _refuse_arguments(node: Function, name: str, given: int) -> None:
    """given: how many it is called with. Raises ValueError where it needs others, and no decorator may give them."""
    if any(_path(decorator)[0] != "pytest" for decorator in node.decorator_list):
        return
    wants = node.args
    positional = [*wants.posonlyargs, *wants.args]
    needed = [arg.arg for arg in positional[given : len(positional) - len(wants.defaults)]]
    needed += [arg.arg for arg, value in zip(wants.kwonlyargs, wants.kw_defaults, strict=True) if value is None]
    if needed:
        raise ValueError(f"test '{name}' needs arguments ({', '.join(needed)}): call it in the tests")
