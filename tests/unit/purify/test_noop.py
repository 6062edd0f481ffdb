import pytest

from retcon.core.types import ToolCall
from retcon.purify.failing import does_nothing, is_noop, is_program


@pytest.mark.parametrize(
    "code", ["", "  \n", "pass", "pass; pass", "# a comment", '"""Words."""\n# more\npass', "...", "1"]
)
def test_code_that_does_nothing(code):
    assert does_nothing(code)


@pytest.mark.parametrize(
    "code", ["print()", "x = 1", "import math", "x", "def f():\n    pass", "if True:\n    pass", "a b", "\0"]
)
def test_code_that_does_something_or_cannot_be_read(code):
    assert not does_nothing(code)


def test_only_calls_that_carry_code_are_judged():
    assert is_noop(ToolCall("0", "python", {"code": "pass"}, char=0))
    assert not is_noop(ToolCall("0", "python", "# broken code", char=0))
    assert not is_noop(ToolCall("0", "search", {"query": "x"}, char=0))


def test_a_program_is_code_of_python():
    assert is_program(ToolCall("0", "python", {"code": "x"}, char=0))
    assert not is_program(ToolCall("0", "python", '{"code": "x', char=0))
    assert not is_program(ToolCall("0", "search", {"query": "x"}, char=0))
    assert not is_program(ToolCall("0", "bash", {"code": "ls"}, char=0, language="shell"))
