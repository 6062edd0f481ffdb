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
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retcon.core.programs import literal, parsed
from retcon.tasks.grading.packed import unpack
from retcon.tasks.grading.uncalled import defines, is_python, pieces_of
from retcon.tasks.types import Task

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
    tree = parsed(text)
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
            read = literal(value)
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
