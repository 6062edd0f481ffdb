"""Reader of a task's tests in the notations of many data sets.

Where they are, in a task's `meta` (the first that exists counts):

tests                     Python that raises where an answer is wrong, a list of such pieces, or cases as below, each
                          maybe a text of JSON; tests in it that nothing calls are called as cases
test_list                 MBPP: asserts, with `test_setup_code` and `test_imports`; MBPP+ has more of them in `test`
test, entry_point         HumanEval: `check(candidate)`, with `prompt`, whose imports and helpers an answer may use;
                          or tests as in `tests` (BigCodeBench)
public_test_cases, private_test_cases, metadata, starter_code      LiveCodeBench, packed or not
input_output              APPS, TACO, and verl's code rows, where it is the answer: `inputs`, `outputs`, `fn_name`
test                      without `entry_point`: tests as in `tests` (KodCode)

Cases are objects with `input` and `output`, or `inputs` and `outputs` as lists; with a function's name they are calls,
with arguments and value as JSON, else texts for standard input and from standard output. A case of its own may name its
function (`fn_name`, or `func_name` in its `metadata`), and its kind (`type`, `testtype`).
"""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import json
import pickletools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retcon.core.texts import FILENAME, parse_literal, parse_program
from retcon.tasks.types import Task

# LiveCodeBench's private tests: JSON in a pickle, packed by zlib, as base64.
#
# A pickle can run anything when it is loaded, and these come from a data set. So it is not loaded: it is read
# instruction by instruction, and must make a single text.

MOST_BYTES = 512 << 20
"""Most unpacked bytes; the largest of the data set are below 200 MiB."""
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


def unpack(packed: str) -> object:
    """Unpack the JSON value in packed tests. Raises ValueError for anything else."""
    try:
        squeezed = base64.b64decode(packed, validate=True)
        whole = zlib.decompressobj()
        data = whole.decompress(squeezed, MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"packed tests cannot be unpacked: {error}") from None
    if not whole.eof:
        raise ValueError(f"packed tests are cut off, or of more than {MOST_BYTES >> 20} MiB")
    try:
        return json.loads(read_pickled_text(data))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"packed tests are not JSON: {error}") from None


def read_pickled_text(pickled: bytes) -> str:
    """Read the text in a pickle without loading it. Raises ValueError for all but a pickle of one text."""
    texts: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(pickled):
            if instruction.name in _TEXTS and not texts:
                texts.append(str(argument))
            elif instruction.name not in _HARMLESS:
                raise ValueError(f"a pickle of more than one text ({instruction.name}): it is not loaded")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"packed tests: {error}") from None
    if not texts:
        raise ValueError("packed tests: a pickle without a text")
    return texts[0]


# Tests in Python that need a runner: functions and classes that nothing in the tests calls.
#
# Uncalled they would pass every program. Each is called as a case, as by pytest and unittest.

_RUNNERS = ("unittest", "pytest")
_RUN = ("main", "run")
_ANYTHING = {"exec", "eval", "globals", "locals", "vars", "__main__"}
"""Names that reach definitions of the answer or the tests indirectly."""
_BY_PYTEST = ("setup_module", "setup_function", "setup_class", "setup_method")
_SUITE = "__import__('unittest').TestSuite([{name}({method!r})]).debug()"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Defined = Function | ast.ClassDef
_DEFINES = (Defined, ast.Import, ast.ImportFrom, ast.Pass)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of tests in Python. checks: whether an answer can fail by it, apart from its definitions. calls: a call
    for each of its definitions that is a test."""

    code: str
    checks: bool = True
    calls: Sequence[str] = ()


def analyse_pieces(codes: Sequence[str]) -> list[Piece]:
    """Analyse consecutive pieces of Python; calls of a test runner are removed from those without checks. Code too
    deep for the parser counts as checking.

    Raises ValueError for invalid Python, and for an uncalled test that cannot simply be called, by its name.
    """
    trees = [_tree(code) for code in codes]
    known = _Definitions([tree for tree in trees if tree is not None])
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
        plain = without.visit(tree)  # unparsed only where needed, as Python cannot unparse all that it parses
        found.append(Piece(ast.unparse(plain) if without.found else code, False, calls))
    return found


def is_python(code: str) -> bool:
    """Return whether a text is valid Python and not empty."""
    tree = parse_program(code)
    return tree is not None and bool(tree.body)


def defines(code: str, name: str) -> bool:
    """Return whether code binds a name at its top level. True for code too deep for the parser. Raises ValueError for
    invalid Python."""
    tree = _tree(code)
    return tree is None or name in _Definitions([tree]).bound


def _tree(code: str) -> ast.Module | None:
    """Parse code; None if it is too deep for the parser. Raises ValueError for invalid Python, which fails always."""
    tree = parse_program(code)
    if tree is None:
        try:
            ast.parse(code, FILENAME)
        except SyntaxError as error:
            version = ".".join(map(str, sys.version_info[:2]))
            raise ValueError(f"they are no Python {version}: {error.msg}, line {error.lineno}") from None
        except (ValueError, RecursionError, MemoryError):
            pass
    return tree


class _Definitions:
    """The pieces' last definition of each name, and the names they bind. runners: names of test runners, and of what
    they made."""

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
        """Return whether an answer can make it fail; endless assignments do not count."""
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
            return True  # the latter uses definitions of the answer
        return any(self._is_test(node) or _asserts(node) for node in self.reached([statement]))

    def reached(self, nodes: Iterable[ast.AST]) -> Iterator[Defined]:
        """Yield the definitions that these nodes name, directly or through others."""
        names = {name for node in nodes for name in _loaded(node)}
        seen: set[str] = set()
        while names:
            name = names.pop()
            seen.add(name)
            if (node := self.defined.get(name)) is not None:
                yield node
                names |= _loaded(node) - seen

    def calls(self, node: Defined) -> Iterator[str]:
        """Yield the calls of a test: one per method of a class, none for other definitions."""
        if node.name in _BY_PYTEST:
            raise ValueError(f"'{node.name}' is called by pytest alone: call it, or make it part of the tests")
        if not self._is_test(node):
            return
        if not isinstance(node, ast.ClassDef):
            _check_arguments(node, node.name, 0)
            yield _runner_call(node, node.name)
            return
        methods = self._methods(node)
        for name, method in methods.items():
            if self._is_case(node):
                yield _SUITE.format(name=node.name, method=name)
            else:
                _check_arguments(method, f"{node.name}.{name}", 1)
                yield _runner_call(method, f"{node.name}().{name}")

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            module = (statement.module or "") if isinstance(statement, ast.ImportFrom) else alias.name
            name = alias.asname or alias.name.partition(".")[0]
            self.bound.add(name)
            if module.partition(".")[0] in _RUNNERS:
                self._runners.add(name)

    def runs(self, node: ast.AST) -> bool:
        """Return whether it runs unittest or pytest, which exit or hide failures."""
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
        """Return the tests of a class and of its bases in the tests."""
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
    """Transformer that removes calls of test runners. found: whether there were any."""

    def __init__(self, known: _Definitions) -> None:
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
    """Yield the statements, with those inside an `if` or `try` in its place."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            parts = (getattr(node, part, []) for part in ("body", "handlers", "orelse", "finalbody"))
            yield from _flat(child for part in parts for child in part)
        elif isinstance(node, ast.stmt):
            yield node


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a statement binds."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _asserts(node: ast.AST) -> bool:
    """Return whether it asserts, raises or exits."""
    return any(
        isinstance(each, ast.Assert | ast.Raise)
        or (isinstance(each, ast.Call) and _path(each)[-1].startswith(("assert", "exit", "_exit")))
        for each in ast.walk(node)
    )


def _path(node: ast.expr) -> list[str]:
    """Return the names of `a.b(…).c`; the first is "" where it does not begin with a name."""
    found: list[str] = []
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            found.append(node.attr)
            node = node.value
        else:
            return [node.id if isinstance(node, ast.Name) else "", *reversed(found)]


def _runner_call(node: Function, name: str) -> str:
    return f"__import__('asyncio').run({name}())" if isinstance(node, ast.AsyncFunctionDef) else f"{name}()"


def _check_arguments(node: Function, name: str, given: int) -> None:
    """Raise ValueError where a test needs more than `given` arguments, unless a decorator may supply them."""
    if any(_path(decorator)[0] != "pytest" for decorator in node.decorator_list):
        return
    wants = node.args
    positional = [*wants.posonlyargs, *wants.args]
    needed = [arg.arg for arg in positional[given : len(positional) - len(wants.defaults)]]
    needed += [arg.arg for arg, value in zip(wants.kwonlyargs, wants.kw_defaults, strict=True) if value is None]
    if needed:
        raise ValueError(f"test '{name}' needs arguments ({', '.join(needed)}): call it in the tests")


PRELUDE = """
import bisect, cmath, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string
import sys, time
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
"""
"""Imports that judges of programming contests provide, and answers rely on. The builtins come last, as math has
another `pow`."""


@dataclass(frozen=True, slots=True)
class Check:
    """Python that raises where the answer is wrong. needs: the code to run before it where earlier ones did not run."""

    code: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Stdio:
    """Standard input and expected standard output. exact: decimals must match too (LiveCodeBench)."""

    stdin: str
    stdout: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `function` with its allowed values, all in JSON types."""

    function: str
    arguments: Sequence[Any]
    values: Sequence[Any]


Case = Check | Stdio | Call
PLACES = ("tests", "test_list", "test", "public_test_cases", "private_test_cases", "input_output")
"""Keys of tests in a task's `meta`."""
_LIVECODEBENCH = ("public_test_cases", "private_test_cases")
_LISTS_TEXTS = re.compile(r"""\s*\[\s*(?:["']|\])""")
_PRINTED = re.compile(
    r"""\s*\[\s*(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\{[^{}]*+\}|[-\d.e+]++)\s+(?:["'{\d.]|-[\d.])""", re.DOTALL
)
_OF_PROGRAMS = ("stdin", "stdin_stdout")
_OF_FUNCTIONS = ("functional", "function_call")
"""Kinds of cases in LiveCodeBench and SYNTHETIC-1."""


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of a task. before: Python that runs before the answer. body_of: the function whose body alone may be
    the answer, and its prompt; None where answers are whole programs."""

    cases: tuple[Case, ...]
    before: str = ""
    body_of: tuple[str, str] | None = None


def is_tests(answer: str) -> bool:
    """Return whether an answer is cases in JSON."""
    return answer.lstrip().startswith(("{", "["))


_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def read_tests(task: Task) -> Tests:
    """Read the tests of a task. Raises ValueError, naming the task, for missing or unreadable tests."""
    try:
        found = _found(task.answer, task.meta)
    except _UNREADABLE as error:
        raise ValueError(f"task {task.id}: its tests cannot be read: {error!s:.300}") from None
    if found is None or not found.cases:
        raise ValueError(
            f"task {task.id} has no tests: meta must hold 'tests' (Python that checks an answer, or cases), "
            "'test_list', 'test', 'input_output', or LiveCodeBench's test cases"
        )
    return found


WrittenCases = tuple[str | None, Sequence[tuple[str, str]]]
"""The function that cases call, None for programs; input and output of each."""


def written_cases(task: Task) -> WrittenCases:
    """Read the cases of a task in LiveCodeBench's format.

    Raises ValueError, naming the task, without such cases.
    """
    try:
        written = [case for name in _LIVECODEBENCH for case in _livecodebench(task.meta.get(name))]
        pairs = [(_text(case["input"]), _text(case["output"])) for case in written]
    except _UNREADABLE as error:
        raise ValueError(f"task {task.id}: its tests cannot be read: {error!s:.300}") from None
    if not pairs:
        raise ValueError(f"task {task.id} has no cases of LiveCodeBench: {' and '.join(_LIVECODEBENCH)} hold them")
    return _function_of(task.meta), pairs


def check_readable(answer: str, meta: Mapping[str, object]) -> None:
    """Raise ValueError for unreadable tests of a row; packed ones are not read, as that takes long."""
    unpacked = {name: value for name, value in meta.items() if name not in _LIVECODEBENCH or not _is_packed(value)}
    try:
        found = _found(answer, unpacked)
        if len(unpacked) == len(meta) and (found is None or not found.cases):
            raise ValueError("it has no tests")
    except _UNREADABLE as error:
        raise ValueError(f"its tests cannot be read: {error!s:.300}") from None


def _python_tests(meta: Mapping[str, object]) -> Tests | None:
    """Read tests in Python; None without any. Raises ValueError where they would check nothing."""
    setup = _text(meta.get("test_setup_code"))
    if tests := _listed(meta.get("tests")):
        if isinstance(tests, str):
            if _is_value(tests):
                raise ValueError(f"'tests' {_unread(tests)}")
            return _python([tests], setup) if tests.strip() else None
        are_python = not isinstance(tests, Mapping) and isinstance(tests[0], str)
        return _python(list(map(str, tests)), setup) if are_python else None
    if pieces := _pieces(meta, "test_list"):
        imports = "\n".join(_pieces(meta, "test_imports"))
        more = _text(meta.get("test"))
        return _python([*pieces, *([more] if is_python(more) else ())], f"{imports}\n{setup}".strip())
    if meta.get("test") and meta.get("entry_point"):
        return _humaneval(_text(meta["test"]), _text(meta["entry_point"]), _text(meta.get("prompt")))
    return None


def _pieces(meta: Mapping[str, object], name: str) -> list[str]:
    """Return the pieces of Python that a row lists; a text is a single one."""
    found = parse_value(meta.get(name)) or ()
    if isinstance(found, str):
        if _is_value(found):
            raise ValueError(f"'{name}' {_unread(found)}")
        return [found]
    return list(map(str, found))


def _is_value(text: str) -> bool:
    """Return whether an unread text is, or looks like, a list or an object, rather than Python that checks."""
    if not is_tests(text):
        return False
    tree = parse_program(text)
    if tree is None:
        return True
    only = tree.body[0] if len(tree.body) == 1 else None
    return isinstance(only, ast.Expr) and isinstance(only.value, ast.List | ast.Dict | ast.Set)


def _found(answer: str, meta: Mapping[str, object]) -> Tests | None:
    if (found := _python_tests(meta)) is not None:
        return found
    if tests := _listed(meta.get("tests")):
        return None if isinstance(tests, str) else _cases(tests, _function_of(meta))
    if public := [name for name in _LIVECODEBENCH if meta.get(name)]:
        cases = [case for name in public for case in _livecodebench(meta[name])]
        function = _function_of(meta) if any(case.get("testtype") == "functional" for case in cases) else None
        return _cases(cases, function)
    if written := meta.get("input_output") or (is_tests(answer) and answer):
        return _cases(parse_value(written), _function_of(meta))
    test = _text(meta.get("test"))
    return _python([test], _text(meta.get("test_setup_code"))) if test.strip() else None


def _python(codes: Sequence[str], before: str, body_of: tuple[str, str] | None = None) -> Tests:
    """Make a case of each checking piece, with the definitions before it, and of each uncalled test."""
    cases: list[Check] = []
    defined: list[str] = []
    new = rest = 0  # definitions that no checking piece has seen, and no case at all
    for piece in analyse_pieces(codes):
        if piece.checks:
            known = len(defined) - new
            cases.append(Check("\n".join([*defined[known:], piece.code]), "\n".join(defined[:known])))
            new = rest = 0
            continue
        defined.append(piece.code)
        cases += [Check("\n".join([*defined, call])) for call in piece.calls]
        new, rest = new + 1, 0 if piece.calls else rest + 1
    if not cases:
        raise ValueError("they check nothing: they have no test_… function, no TestCase, and nothing that may fail")
    if rest:
        cases[-1] = replace(cases[-1], code="\n".join([cases[-1].code, *defined[-rest:]]))
    return Tests(tuple(cases), before, body_of)


def _cases(written: Any, function: str | None) -> Tests:
    """Read cases. function: default of cases that name none."""
    if isinstance(written, str):
        raise ValueError(f"a text of cases {_unread(written)}")
    if isinstance(written, Mapping):
        called = _text(written.get("fn_name")) or function
        inputs, outputs = written["inputs"], written["outputs"]
        if len(inputs) != len(outputs):
            raise ValueError(f"{len(inputs)} inputs, and {len(outputs)} outputs")
        pairs = zip(inputs, outputs, strict=True)
        return Tests(tuple(_call(called, i, o) if called else Stdio(_lines(i), _lines(o)) for i, o in pairs), PRELUDE)
    return Tests(tuple(_case(case, function) for case in written), PRELUDE)


def _case(case: Mapping[str, Any], function: str | None) -> Case:
    own = _function_of(case)
    if called := _called(case, own or function):
        return _call(called, case["input"], case["output"], listed=bool(own))
    return Stdio(_lines(case["input"]), _lines(case["output"]), exact="testtype" in case)


def _call(function: str, given: Any, expected: Any, *, listed: bool = True) -> Call:
    """Read a call. listed: whether a value may be wrapped in a list (APPS)."""
    return Call(function, _arguments(given), _values(expected, listed))


def _called(case: Mapping[str, Any], function: str | None) -> str | None:
    """Return the function that a case calls, None for a program's input and output. Raises ValueError for a call
    without a function's name."""
    kind = _text(case.get("testtype")) or _text(case.get("type"))
    if kind in _OF_PROGRAMS:
        return None
    if kind in _OF_FUNCTIONS and not function:
        raise ValueError(
            f"a case is '{kind}' and names no function: 'fn_name', or 'func_name' in 'metadata', says which"
        )
    return function


def _humaneval(test: str, name: str, prompt: str) -> Tests:
    helpers = prompt.partition(f"def {name}(")[0]
    body_of = (name, prompt) if prompt else None
    if defines(test, "check"):
        if not name.isidentifier():
            raise ValueError(f"entry_point {name!r:.80} is no name")
        return Tests((Check(f"{test}\ncheck({name})"),), helpers, body_of)
    return _python([test], helpers, body_of)


def _is_packed(written: object) -> bool:
    return isinstance(written, str) and not written.lstrip().startswith("[")


def _livecodebench(written: Any) -> Sequence[Mapping[str, Any]]:
    if _is_packed(written):
        written = unpack(written)
    cases = parse_value(written) or ()
    if isinstance(cases, str):
        raise ValueError(f"a text of cases {_unread(cases)}")
    found: Sequence[Mapping[str, Any]] = cases
    return found


def _function_of(of: Mapping[str, object]) -> str | None:
    """Return the function that a row or a case, or its `metadata`, names (LiveCodeBench)."""
    about = parse_value(of.get("metadata"))
    named = about.get("func_name") if isinstance(about, Mapping) else None
    return _text(of.get("fn_name")) or _text(named) or None


def find_function(row: Mapping[str, object]) -> str | None:
    """Find the function that a row's cases call, by row or cases; None for programs' or unreadable ones
    (`check_readable` says why)."""
    try:
        return _function_named(row)
    except (ValueError, RecursionError):
        return None


def list_pieces(tests: object) -> list[str] | None:
    """Return the pieces of Python in a list of tests. It may be JSON; None for cases, a text alone, or unreadable
    tests (`check_readable` says why)."""
    if isinstance(tests, str) and not _LISTS_TEXTS.match(tests):
        return None  # many have megabytes
    try:
        found = _listed(tests)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def _function_named(row: Mapping[str, object]) -> str | None:
    if own := _function_of(row):
        return own
    written = row.get("input_output") or row.get("tests")
    if isinstance(written, str) and "fn_name" not in written and "func_name" not in written:
        return None  # many have megabytes
    cases = _listed(written)
    first = cases[0] if isinstance(cases, list) and cases else cases
    return _function_of(first) if isinstance(first, Mapping) else None


def _listed(tests: object) -> Any:
    """Parse a value with `parse_value`, and each item if all are cases."""
    found = parse_value(tests)
    cases = [parse_value(case) for case in found] if isinstance(found, list) else []
    return cases if cases and all(isinstance(case, Mapping) for case in cases) else found


def parse_value(value: object) -> Any:
    """Parse a list or object in text. It may be JSON or Python (pandas, in CSV). Raises ValueError, RecursionError for
    JSON beyond Python's limits: integers of more than 4,300 digits, lists in too many lists."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            read = parse_literal(value)
            return value if read is None else read
    return value


def numpy_error(value: object) -> str:
    """Return the error for a list printed by NumPy, else "". Its items may have no visible end."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return ""
    if not ("array([" in value and "dtype=object)" in value) and _PRINTED.match(value) is None:
        return ""
    return (
        f"is a list as NumPy prints it, {value!r:.40}, without clear limits of its items: write it as JSON "
        "(json.dumps(array.tolist())), or all rows as .parquet or .jsonl"
    )


def _unread(text: str) -> str:
    """Return why a text that should list something was not read."""
    why = f"can be read neither as JSON nor as lists and objects that Python writes: {text!r:.40}"
    return numpy_error(text) or why


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _lines(value: object) -> str:
    """Return a program's input or output, given as text or lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(written: Any) -> Sequence[Any]:
    """Read a list of arguments; in text, each is a line of JSON."""
    if isinstance(written, str):
        return [json.loads(line) for line in written.splitlines() if line.strip()]
    return list(written)


def _values(written: Any, listed: bool) -> Sequence[Any]:
    """Read a value; a text that is not JSON is the value where that is allowed (APPS)."""
    try:
        value = json.loads(written) if isinstance(written, str) else written
    except json.JSONDecodeError:
        if not listed:
            raise
        value = written
    return [value, value[0]] if listed and isinstance(value, list) and len(value) == 1 else [value]
