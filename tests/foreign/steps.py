"""What happens in a transcript, whatever format it is written in."""

from __future__ import annotations

from dataclasses import dataclass

TRACEBACK = """Traceback (most recent call last):
  File "<string>", line {line}, in <module>
{type}: {message}"""


@dataclass(frozen=True)
class Step:
    """What happens next. kind: `user`, `answer` or `call`; a call says something, runs code and has an output."""

    kind: str
    text: str
    code: str = ""
    output: str = ""


def user(text: str) -> Step:
    return Step("user", text)


def answer(text: str) -> Step:
    return Step("answer", text)


def works(code: str, output: str = "1", said: str = "let me see") -> Step:
    return Step("call", said, code, output)


def fails(code: str, type: str = "NameError", line: int = 1, said: str = "let me see") -> Step:
    return Step("call", said, code, TRACEBACK.format(line=line, type=type, message="name 'x' is not defined"))


FAILED = "import math\nroot = math.sqroot(16)\nprint(root)"
FIXED = "import math\nroot = math.sqrt(16)\nprint(root)"
REPAIRED = (user("the root of 16?"), fails(FAILED, "AttributeError", 2), works(FIXED, "4.0", "sqrt it is"), answer("4"))
"""A failed call and, right after it, its fix: shallow."""
