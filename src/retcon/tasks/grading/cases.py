"""The tests of a task, however its data set writes them.

Where they are, in a task's `meta` (the first that is there counts):

tests                     Python that raises where an answer is wrong, a list of such pieces, or cases as below, each
                          maybe a text of JSON; tests in it that nothing calls are called as cases (`uncalled.py`)
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

from retcon.core.programs import FILENAME, parse_literal, parse_program
from retcon.tasks.types import Task

# LiveCodeBench's private tests: JSON in a pickle, packed by zlib, as base64.
#
# A pickle can run anything when it is loaded, and these come from a data set. So it is not loaded: it is read
# instruction by instruction, and only one that makes a single text is taken.

MOST_BYTES = 512 << 20
"""Unpacked; the largest of the data set are below 200 MiB."""
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


def unpack(packed: str) -> object:
    """The JSON value in it. Raises ValueError for anything else."""
    try:
        squeezed = base64.b64decode(packed, validate=True)
        whole = zlib.decompressobj()
        data = whole.decompress(squeezed, MOST_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"packed tests cannot be unpacked: {error}") from None
    if not whole.eof:
        raise ValueError(f"packed tests are cut off, or of more than {MOST_BYTES >> 20} MiB")
    try:
        return json.loads(text_of(data))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"packed tests are not JSON: {error}") from None


def text_of(pickled: bytes) -> str:
    """The text that a pickle of one text holds. Raises ValueError for every other pickle, and what is none."""
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


# Tests in Python that wait for a runner: functions and classes that nothing in the tests calls.
#
# As they stand they pass every program. Each is called instead, as pytest and unittest would, as a case of its own.

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
    tree = parse_program(code)
    return tree is not None and bool(tree.body)


def defines(code: str, name: str) -> bool:
    """Whether Python binds a name at its top level. True for what is too deep for the parser. Raises ValueError for
    what is no Python."""
    tree = _tree(code)
    return tree is None or name in _Known([tree]).bound


def _tree(code: str) -> ast.Module | None:
    """None for what is too deep for the parser. Raises ValueError for what is no Python, which no answer passes."""
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
            yield _runner_call(node, node.name)
            return
        methods = self._methods(node)
        for name, method in methods.items():
            if self._is_case(node):
                yield _SUITE.format(name=node.name, method=name)
            else:
                _refuse_arguments(method, f"{node.name}.{name}", 1)
                yield _runner_call(method, f"{node.name}().{name}")

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


def _runner_call(node: Function, name: str) -> str:
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
"""What the judges of programming contests have imported before an answer runs, and answers rely on. The builtins last,
as math has a `pow` of its own."""


@dataclass(frozen=True, slots=True)
class Check:
    """Python that raises where the answer is wrong. needs: what it takes to run it after none of those before it."""

    code: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Stdio:
    """Text for standard input, and the text that standard output must have. exact: its decimals, too
    (LiveCodeBench)."""

    stdin: str
    stdout: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a call of `function`, and what it may return, all as JSON has it."""

    function: str
    arguments: Sequence[Any]
    values: Sequence[Any]


Case = Check | Stdio | Call
PLACES = ("tests", "test_list", "test", "public_test_cases", "private_test_cases", "input_output")
"""Where tests may stand in a task's `meta`."""
_LIVECODEBENCH = ("public_test_cases", "private_test_cases")
_LISTS_TEXTS = re.compile(r"""\s*\[\s*(?:["']|\])""")
_PRINTED = re.compile(
    r"""\s*\[\s*(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|\{[^{}]*+\}|[-\d.e+]++)\s+(?:["'{\d.]|-[\d.])""", re.DOTALL
)
_OF_PROGRAMS = ("stdin", "stdin_stdout")
_OF_FUNCTIONS = ("functional", "function_call")
"""Kinds of cases, as LiveCodeBench and SYNTHETIC-1 call them."""


@dataclass(frozen=True, slots=True)
class Tests:
    """before: Python that runs before the answer. body_of: the function whose body alone may be the answer, and the
    prompt that it goes on from then, None where answers are whole programs."""

    cases: tuple[Case, ...]
    before: str = ""
    body_of: tuple[str, str] | None = None


def is_tests(answer: str) -> bool:
    """Whether an answer is cases, as a text of JSON."""
    return answer.lstrip().startswith(("{", "["))


_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def read_tests(task: Task) -> Tests:
    """The tests of a task. Raises ValueError, naming the task, where there are none or they cannot be read."""
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
"""The function that cases call, None of those that read and print; what each gives and expects."""


def written_cases(task: Task) -> WrittenCases:
    """Read the cases of a task as LiveCodeBench writes them.

    Raises ValueError, naming the task, where it has no such cases.
    """
    try:
        written = [case for name in _LIVECODEBENCH for case in _livecodebench(task.meta.get(name))]
        pairs = [(_text(case["input"]), _text(case["output"])) for case in written]
    except _UNREADABLE as error:
        raise ValueError(f"task {task.id}: its tests cannot be read: {error!s:.300}") from None
    if not pairs:
        raise ValueError(f"task {task.id} has no cases of LiveCodeBench: {' and '.join(_LIVECODEBENCH)} hold them")
    return _function_of(task.meta), pairs


def refuse_unreadable(answer: str, meta: Mapping[str, object]) -> None:
    """Raises ValueError where the tests of a row cannot be read; those that are packed, which takes long, are not."""
    unpacked = {name: value for name, value in meta.items() if name not in _LIVECODEBENCH or not _is_packed(value)}
    try:
        found = _found(answer, unpacked)
        if len(unpacked) == len(meta) and (found is None or not found.cases):
            raise ValueError("there are none")
    except _UNREADABLE as error:
        raise ValueError(f"its tests cannot be read: {error!s:.300}") from None


def _python_tests(meta: Mapping[str, object]) -> Tests | None:
    """Those in Python, None where there are others or none. Raises ValueError where they would check nothing."""
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
    """Pieces of Python that a row lists; a text that is no list is one."""
    found = plain(meta.get(name)) or ()
    if isinstance(found, str):
        if _is_value(found):
            raise ValueError(f"'{name}' {_unread(found)}")
        return [found]
    return list(map(str, found))


def _is_value(text: str) -> bool:
    """Whether a text that was not read is nevertheless a list or an object, or meant to be one, and no Python that may
    check something."""
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
        return _cases(plain(written), _function_of(meta))
    test = _text(meta.get("test"))
    return _python([test], _text(meta.get("test_setup_code"))) if test.strip() else None


def _python(codes: Sequence[str], before: str, body_of: tuple[str, str] | None = None) -> Tests:
    """Each piece that checks something is a case, with what the pieces before it define; each test that nothing calls
    is one, too."""
    cases: list[Check] = []
    defined: list[str] = []
    new = rest = 0  # how many of those no piece that checks has met, and no case at all
    for piece in pieces_of(codes):
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
    """function: what cases call that do not say."""
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
    """listed: whether a value may stand in a list of its own (APPS)."""
    return Call(function, _arguments(given), _values(expected, listed))


def _called(case: Mapping[str, Any], function: str | None) -> str | None:
    """The function that a case calls, None where it is a program's input and output. Raises ValueError where its kind
    says that it calls one, and nothing says which."""
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
    cases = plain(written) or ()
    if isinstance(cases, str):
        raise ValueError(f"a text of cases {_unread(cases)}")
    found: Sequence[Mapping[str, Any]] = cases
    return found


def _function_of(of: Mapping[str, object]) -> str | None:
    """The function to be called, as a row or a case says, or its `metadata` (LiveCodeBench)."""
    about = plain(of.get("metadata"))
    named = about.get("func_name") if isinstance(about, Mapping) else None
    return _text(of.get("fn_name")) or _text(named) or None


def function_named(row: Mapping[str, object]) -> str | None:
    """The function that the cases of a row call, as the row says, or they do; None where they are for programs, or
    cannot be read (`refuse_unreadable` says why)."""
    try:
        return _function_named(row)
    except (ValueError, RecursionError):
        return None


def lines_of(tests: object) -> list[str] | None:
    """The pieces of Python that a column of tests lists, as a list or as its JSON; None where it holds cases, a text
    alone, or what cannot be read (`refuse_unreadable` says why)."""
    if isinstance(tests, str) and not _LISTS_TEXTS.match(tests):
        return None  # many are of megabytes
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
        return None  # many are of megabytes
    cases = _listed(written)
    first = cases[0] if isinstance(cases, list) and cases else cases
    return _function_of(first) if isinstance(first, Mapping) else None


def _listed(tests: object) -> Any:
    """As `plain`, each of a list of cases, too."""
    found = plain(tests)
    cases = [plain(case) for case in found] if isinstance(found, list) else []
    return cases if cases and all(isinstance(case, Mapping) for case in cases) else found


def plain(value: object) -> Any:
    """Lists and objects may stand in a row as text, of JSON or as Python writes them (pandas, in CSV). Raises
    ValueError, RecursionError for JSON that Python does not read: integers of more than 4,300 digits, lists in too
    many lists."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            read = parse_literal(value)
            return value if read is None else read
    return value


def as_printed(value: object) -> str:
    """What to say of a text that holds lists as NumPy prints them, "" of any other: where their items end it may not
    tell."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return ""
    if not ("array([" in value and "dtype=object)" in value) and _PRINTED.match(value) is None:
        return ""
    return (
        f"is a list as NumPy prints it, {value!r:.40}, whose items cannot be told apart: write it as JSON "
        "(json.dumps(array.tolist())), or all rows as .parquet or .jsonl"
    )


def _unread(text: str) -> str:
    """Why a text that should list something was not read."""
    why = f"can be read neither as JSON nor as lists and objects that Python writes: {text!r:.40}"
    return as_printed(text) or why


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _lines(value: object) -> str:
    """What a program reads or prints: a text, or lines of one."""
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(written: Any) -> Sequence[Any]:
    """A list of arguments; as text, each a line of JSON."""
    if isinstance(written, str):
        return [json.loads(line) for line in written.splitlines() if line.strip()]
    return list(written)


def _values(written: Any, listed: bool) -> Sequence[Any]:
    """A text that is no JSON stands for itself where values may be such (APPS)."""
    try:
        value = json.loads(written) if isinstance(written, str) else written
    except json.JSONDecodeError:
        if not listed:
            raise
        value = written
    return [value, value[0]] if listed and isinstance(value, list) and len(value) == 1 else [value]
