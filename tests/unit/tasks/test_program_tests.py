"""How tests of programs are read, as data sets write them, and what they expect compared."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from datafiles import write
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.graders.code import same_output, same_value
from retcon.tasks.grading.cases import Call, Check, Stdio, read_tests, unpack
from retcon.tasks.types import Task


def pack(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def read(**meta: object) -> Any:
    return read_tests(Task("mine/7", "?", str(meta.pop("answer", "")), meta=meta))


def test_tests_are_read_as_data_sets_write_them() -> None:
    assert read(tests="assert f(1) == 2").cases == (Check("assert f(1) == 2"),)
    mbpp = read(test_list=["assert f(1)", "assert f(2)"], test_setup_code="x = 1", test_imports=["import math"])
    assert (mbpp.before, len(mbpp.cases)) == ("import math\nx = 1", 2)
    loop = "def same(a, b): assert a == b\nfor a, b in [(3, 4)]:\n    same(f(a), b)"
    assert read(test_list=["assert f(1)"], test=loop).cases == (Check("assert f(1)"), Check(loop))
    for beside in ("", "  ", "# none", "no Python!", None, ["assert f(2)"]):
        assert read(test_list=["assert f(1)"], test=beside).cases == (Check("assert f(1)"),)
    humaneval = read(test="def check(c): assert c(1)", entry_point="f", prompt="import math\ndef f(x):\n  ")
    assert humaneval.cases[0].code.endswith("check(f)")
    assert humaneval.before == "import math\n"
    assert read(tests=[{"input": "1\n", "output": "2\n"}]).cases == (Stdio("1\n", "2\n"),)
    apps = {"inputs": [[1, [2]], [3, [4]]], "outputs": [[5], 6], "fn_name": "f"}
    assert read(input_output=json.dumps(apps)).cases == (Call("f", [1, [2]], [[5], 5]), Call("f", [3, [4]], [6]))
    words = {"inputs": [["ab"]], "outputs": ["ba"], "fn_name": "f"}
    assert read(input_output=words).cases == (Call("f", ["ab"], ["ba"]),)
    assert read(answer=json.dumps({"inputs": ["1"], "outputs": ["2"]})).cases == (Stdio("1", "2"),)


@pytest.mark.parametrize(
    ("case", "call"),
    [
        ({"fn_name": "f", "type": "function_call", "input": [1, 2], "output": [3]}, Call("f", [1, 2], [[3], 3])),
        ({"fn_name": "f", "type": "function_call", "input": [[3]], "output": 3}, Call("f", [[3]], [3])),
        (
            {"testtype": "functional", "metadata": {"func_name": "f"}, "input": "1\n2", "output": "3"},
            Call("f", [1, 2], [3]),
        ),
        ({"metadata": '{"func_name": "f"}', "input": '"a"', "output": '"b"'}, Call("f", ["a"], ["b"])),
        ({"type": "stdin_stdout", "input": "1", "output": "2"}, Stdio("1", "2")),
    ],
)
def test_a_case_may_name_the_function_that_it_calls(case: dict[str, Any], call: Call | Stdio) -> None:
    assert read(tests=[case]).cases == (call,)
    assert read(tests=json.dumps([case])).cases == (call,)


@pytest.mark.parametrize("kind", [{"type": "function_call"}, {"testtype": "functional"}])
def test_a_case_that_calls_what_nobody_names_is_refused_before_work_starts(
    kind: dict[str, str], tmp_path: Path
) -> None:
    case = {**kind, "input": "1", "output": "2"}
    with pytest.raises(ValueError, match="names no function: 'fn_name'"):
        read(tests=[case])
    with pytest.raises(ValueError, match="names no function: 'fn_name'"):
        read(public_test_cases=json.dumps([case]), metadata="{}")
    row = {"question": "Add.", "answer": json.dumps([case]), "grader": "code"}
    file = write(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match=r"line 1: .*its tests cannot be read: .* names no function"):
        FileTaskSettings(path=file).open()


@pytest.mark.parametrize("row", [{"answer": '{"a": 1}'}, {"answer": "[]"}, {"tests": " ", "answer": "5"}])
def test_rows_whose_tests_are_none_are_refused_before_work_starts(row: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"question": "Write f.", "grader": "code", **row}])
    with pytest.raises(DataError, match=r"line 1: .*its tests cannot be read"):
        FileTaskSettings(path=file, format="plain").open()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, ("print('loaded')",))


@pytest.mark.parametrize(
    "packed",
    [
        pack(Evil()), pack(["[]", "[]"]), pack({"a": 1}), pack(7), pack("no json"), pack(b"[]"),
        base64.b64encode(b"no zlib").decode(), base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-3]).decode(),
        base64.b64encode(zlib.compress(b"\x80\x04X\xff\xff\xff\xff")).decode(), "no base64!", "",
    ],
)  # fmt: skip
def test_packed_tests_that_are_more_than_a_text_are_refused_unloaded(
    packed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"pickle|packed tests"):
        unpack(packed)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "meta",
    [
        {}, {"tests": "  "}, {"tests": [{"input": "1"}]}, {"input_output": '{"inputs": ["1"], "outputs": []}'},
        {"input_output": "[1, 2]"}, {"test_list": []}, {"public_test_cases": "%%"}, {"answer": "[" * 100_000},
        {"answer": "[7]"},
    ],
)  # fmt: skip
def test_tests_that_cannot_be_read_are_refused_by_name(meta: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="task mine/7"):
        read(**meta)


PRINTED = "[{'input': '3', 'output': '6'}\n {'input': '4', 'output': '8'}]"
"""As pandas writes a column of lists of objects that came from a Parquet file."""


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"tests": PRINTED}, "'tests' is a list as NumPy prints it"),
        ({"tests": "{'inputs': array([1, 2]), 'outputs': array([1, 2])}"}, "'tests' can be read neither as JSON nor"),
        ({"tests": "{'inputs': ['1'], 'outputs': ['2'], 'fn_name': nan}"}, "'tests' can be read neither as JSON nor"),
        ({"tests": '[{"input": "3", "out'}, "'tests' can be read neither as JSON nor"),
        ({"public_test_cases": PRINTED}, "a text of cases is a list as NumPy prints it"),
        ({"public_test_cases": '[{"input": "3", "out'}, "a text of cases can be read neither as JSON nor"),
        ({"test_list": "['assert f(1)' 'assert f(2)']"}, "'test_list' is a list as NumPy prints it"),
        (
            {"test_list": ["assert f(1)"], "test_imports": "['import os' 'import re']"},
            "'test_imports' is a list as NumPy prints it",
        ),
    ],
)
def test_a_text_of_tests_that_is_neither_a_list_nor_python_is_refused(meta: dict[str, object], told: str) -> None:
    """Each was taken for Python that no answer passes."""
    with pytest.raises(ValueError, match=f"its tests cannot be read: {told}"):
        read(**meta)


def test_python_that_begins_with_a_list_and_pieces_that_are_no_list_are_read() -> None:
    for code in "[1 -f(1)][0] and exit(1)\nassert f(2) == 2", "[f(n) for n in range(3)] == [0, 1, 4] or exit(1)":
        assert read(tests=code).cases == (Check(code),)
    found = read(test_list=["assert f(1)"], test_imports="import math")
    assert (found.before, found.cases) == ("import math", (Check("assert f(1)"),))


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("1 2\n3", "1 2 \n3\n\n", True), ("1.0", "1", True), ("0.5 x", "0.50 x", True), ("1", "2", False),
        ("1\n2", "1 2", False), ("yes", "Yes", False), ("nan", "NaN", False), ("", "\n", True),
        ("1", "1" + "0" * 10_000_000, False), ("1e999999999", "1e999999998", False), ("1.5", "sNaN", False),
        ("1.5", "nan", False), ("nan", "1.5", False), ("1.5", "-Infinity", False),
    ],
)  # fmt: skip
def test_outputs_are_compared_line_by_line(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected, printed) is same
    assert same_output(expected, printed, exact=True) is same


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("0.333333", "0.3333333333333333", True), ("1\n2 0.5", "1\n2 0.5000001", True),
        ("100000", "1.000001e5", True), ("0", "1e-9", True), ("0.3333", "0.3333333", False),
        ("50000000000000000", "50000000000000001", False), ("x 0.333333", "x 0.3333333333333333", True),
        ("yes 1.5", "yes 1.6", False),
    ],
)  # fmt: skip
def test_decimals_may_differ_in_their_last_digits_where_data_sets_allow_it(
    expected: str, printed: str, same: bool
) -> None:
    assert same_output(expected, printed) is same
    assert not same_output(expected, printed, exact=True)


@pytest.mark.parametrize(
    ("expected", "returned", "same"),
    [
        ([1, [2, 3]], [1, [2, 3]], True), (1, 1.0, True), (0.3, 0.1 + 0.2, True), (True, 1, True), (1, True, True),
        (1, False, False), ("a", ["a"], False), ({"a": [1]}, {"a": [1]}, True), ({"a": 1}, {"b": 1}, False),
        (None, False, False), (1.5, 10**400, False), ([1], [1, 1], False),
    ],
)  # fmt: skip
def test_values_are_equal_as_json(expected: Any, returned: Any, same: bool) -> None:
    assert same_value(expected, returned) is same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
