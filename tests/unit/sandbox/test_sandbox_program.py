"""The one request for a call or a cell, however `run` is asked."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.client import SandboxClient, SandboxRouter, request_body
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits, Program, ProgramOptions, as_cell, as_program


def test_a_text_with_keywords_is_the_program_with_these_fields() -> None:
    asked = as_program("print(1)", {"timeout": 2.0, "files": {"a": b"x"}, "fetch": ["b"]})
    assert asked == Program("print(1)", timeout=2.0, files={"a": b"x"}, fetch=["b"])
    assert as_program(asked, {}) is asked
    assert as_program(asked, {"timeout": None, "files": None}) == Program("print(1)", fetch=["b"])


def test_the_keywords_are_the_fields() -> None:
    assert ["code", *ProgramOptions.__annotations__] == [field.name for field in fields(Program)]


def test_an_unknown_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="timeot"):
        as_program("1", {"timeot": 1})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"code": b"1"}, "code is a bytes"), ({"stdin": None}, "stdin is a NoneType"),
        ({"stdin": "a\ud800"}, "stdin is not Unicode: surrogates not allowed at character 1"),
        ({"files": {1: b""}}, "file 1 is named by a int"),
        ({"files": {"a": "x"}}, "the content of file 'a' is a str"), ({"timeout": 0}, "limit cpu_seconds is 0"),
        ({"memory": -1}, "limit memory_mb is -1"),
        ({"memory": 512.0}, "limit memory_mb is 512.0, a float: it must be of type int"),
        ({"timeout": "5"}, "limit cpu_seconds is '5', a str: it must be of type float"),
        ({"seed": -1}, "seed is -1: it must be a whole number from 0 and below 2\\*\\*63"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"), ({"seed": True}, "seed is True"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused_by_name_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Program(**{"code": "1"} | options)


@pytest.mark.parametrize(("option", "value"), [("wait", 1.0), ("seed", 0)])
def test_a_cell_has_neither_a_queue_nor_a_seed(option: str, value: object) -> None:
    options: Any = {option: value}
    with pytest.raises(ValueError, match=f"{option} is for calls"):
        as_cell("1", options)


def test_the_body_of_a_call_says_what_was_given_and_leaves_the_rest_to_the_server() -> None:
    assert request_body(Program("")) == {"code": "pass", "stdin": "", "echo": True}
    whole = request_body(Program("1", timeout=1.0, memory=2, wait=3.0, seed=0, files={"a": b"\0"}, limits=Limits()))
    assert (whole["timeout"], whole["memory"], whole["wait"], whole["files"]) == (1.0, 2, 3.0, {"a": "AA=="})
    assert whole["seed"] == 0
    assert whole["limits"]["output_bytes"] == Limits().output_bytes


@pytest.mark.parametrize("sandbox", [SandboxPool(), SandboxClient("http://127.0.0.1:9"), SandboxRouter(["http://a"])])
def test_all_take_a_program_or_a_text(sandbox: Any) -> None:
    for asked in ("1", Program("1")):
        with pytest.raises(SandboxUnavailable, match="not open"):
            asyncio.run(sandbox.run(asked, timeout=1))
        with pytest.raises(ValueError, match="limit cpu_seconds is 0"):
            asyncio.run(sandbox.run(asked, timeout=0))
