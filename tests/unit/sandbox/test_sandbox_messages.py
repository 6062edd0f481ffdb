"""What the sandbox's processes say to each other, and that those inside carry little."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.sandbox.jail.messages import (
    Bounds,
    CallEnded,
    Message,
    Outcome,
    RunCall,
    decoded,
    encoded,
)
from retcon.sandbox.pool import session as request
from retcon.sandbox.types import Limits, Program, Result

SOURCE = Path(__file__).resolve().parents[3] / "src"
TEXTS = st.text(st.characters())  # lone surrogates too, which a model's program may hold
LIMITS = st.builds(
    Limits,
    cpu_seconds=st.floats(0.001, 1e9),
    wall_seconds=st.floats(0.001, 1e9),
    memory_mb=st.integers(1, 10**9),
    processes=st.integers(1, 10**9),
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS, int: st.integers(), float: st.floats(allow_nan=False), bool: st.booleans(),
    list[str]: st.lists(TEXTS, max_size=3), list[int]: st.lists(st.integers(), max_size=3),
    dict[str, str]: st.dictionaries(TEXTS, TEXTS, max_size=3), type(None): st.none(),
    Bounds: LIMITS.map(request.bounds),
}  # fmt: skip


def some(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that fields of messages have."""
    if kind in VALUES:
        return VALUES[kind]
    if isinstance(kind, UnionType):
        return st.one_of([some(one) for one in get_args(kind)])
    return st.builds(kind, **{name: some(hint) for name, hint in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: Any, data: st.DataObject) -> None:
    message = data.draw(some(kind))
    again = decoded(encoded(message))
    assert (type(again), again) == (kind, message)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"Forked": [1], "x": 2}', b'["Forked", []]', b'["Forked", [1, 2]]', b'["Forked", 1]',
        b'["Bounds", [1, 1, 1, 1, 1, 1, 1]]', b'["OpenSession", [[1]]]', b'["OpenSession", [3]]',
        b'["OpenSession", {}]', b'[["OpenSession"], []]', b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of the sandbox"):
        decoded(body)


def test_the_limits_inside_are_those_outside() -> None:
    limits = Limits(1.5, 2.5, 3, 4, 5, 6, 7)
    assert Bounds._fields == tuple(field.name for field in fields(Limits))
    assert request.bounds(limits)._asdict() == {name: getattr(limits, name) for name in Bounds._fields}


def test_an_outcome_is_a_result_except_for_what_the_host_knows_better() -> None:
    assert list(Outcome._fields) == [field.name for field in fields(Result)]
    assert "outcome" in CallEnded._fields


def test_a_program_is_sent_whole() -> None:
    program = Program("print(1)", stdin="x", files={"d/a": b"\0\xff"}, fetch=["b"], echo=False)
    call = request.call(program, Limits(), "landlock", ())
    assert call == RunCall("print(1)", "x", request.bounds(Limits()), {"d/a": "AP8="}, False, ["b"])
    assert request.cell(program, Limits(), 16, "", ()) == call


def test_what_is_forked_for_every_call_has_imported_little() -> None:
    """Each module more is pages more to copy, and to share, in every fork (docs/sandbox/sandbox.md)."""
    heavy = ("pathlib", "dataclasses", "inspect", "asyncio", "subprocess", "tempfile", "shutil", "logging", "threading")
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nbefore = set(sys.modules)\n"
        "from retcon.sandbox.jail import worker, zygote\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'retcon'}\n"
        "print(*sorted(new - sys.stdlib_module_names), *sorted(new & set(sys.argv[2:])))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('retcon')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(SOURCE), *heavy], capture_output=True, text=True, check=True
    )
    foreign, ours = done.stdout.splitlines()
    assert foreign == ""
    names = ours.split()
    assert [name for name in names if not name.startswith("retcon.sandbox.jail")] == ["retcon", "retcon.sandbox"]
