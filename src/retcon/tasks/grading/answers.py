"""Which program a reply answers with: the last one, but for those that only show how to use another."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from textwrap import dedent

from retcon.chat.markdown import find_calls, whole_blocks
from retcon.core.programs import parsed
from retcon.core.types import Trajectory
from retcon.tasks.graders.text import heard
from retcon.tasks.grading.cases import Call, Check, Tests
from retcon.tasks.grading.types import Reply

_IMPORTED_AS = ("answer", "solution")
LONG = 1 << 16  # characters of a block; 600,000 took 11 s
_INDENTED = re.compile(r"(?:[ \t]*(?:#.*)?\n)*[ \t]+[^\s#]")  # its first line of code


def answered_program(reply: Reply, tests: Tests) -> str | None:
    """The program that a reply answers with; None where there is none, or no answer.

    The last block of its last turn; where blocks are calls, an answer can hold none: then the last program that ran
    without failing. Where the tests name what they call, it is the last of these that defines it or is the indented
    body of it, if any is.
    """
    programs = _programs(reply)
    if len(programs) < 2:
        return programs[0] if programs else None
    names = names_of(tests)
    answers = (one for one in reversed(programs) if _answers(one, names, tests))
    bodies = (one for one in reversed(programs) if _may_be_body(one, tests))
    return next(chain(answers, bodies), programs[-1])


def whole(program: str, tests: Tests) -> str:
    """The answer as a program: one that is the body of a function alone, which may call itself, goes on from its
    prompt."""
    return program if tests.body_of is None or _is_whole(program, *tests.body_of) else tests.body_of[1] + program


def names_of(tests: Tests) -> frozenset[str]:
    """What the tests call of an answer; none where they run programs, or cannot be read."""
    if tests.body_of is not None:
        return frozenset({tests.body_of[0]})
    called = {case.function for case in tests.cases if isinstance(case, Call)}
    checks = [f"{case.needs}\n{case.code}" for case in tests.cases if isinstance(case, Check)]
    return frozenset(called or (_free([tests.before, *checks]) if checks else ()))


def _programs(reply: Reply) -> Sequence[str]:
    if reply.trajectory is None:
        return _blocks(reply.text)
    return (_blocks(reply.text) or _ran(reply.trajectory)) if reply.trajectory.stop == "answer" else ()


def _ran(trajectory: Trajectory) -> Sequence[str]:
    return [
        call.code
        for turn in trajectory.turns
        for call, observation in zip(turn.calls, turn.observations, strict=True)
        if observation.status == "ok" and not call.malformed and "code" in call.arguments
    ]


def _blocks(text: str) -> Sequence[str]:
    """The whole blocks of Python in a text; those that were only thought, where it then says nothing."""
    programs = [
        (start, end)
        for start, end in whole_blocks(text, indented=True)
        if heard(text[start:end]) == text[start:end] or _is_python(text[start:end])
    ]
    found = find_calls(heard(text, programs), indented=True)
    return [str(call.arguments["code"]) for call in found if not isinstance(call.arguments, str)]


def _is_python(block: str) -> bool:
    """Whether a block, fences and all, is a program or the body of one: what is left open in a thought, and closed by a
    fence of the answer, is none. A long one is taken for one, as parsing it would keep others waiting."""
    code = "\n".join(block.split("\n")[1:-1])
    return len(code) > LONG or any(parsed(one) is not None for one in (dedent(code), f"def _():\n{code}"))


def _answers(program: str, names: Collection[str], tests: Tests) -> bool:
    """Whether it defines one of these names, or is the indented body of one: what is not indented may follow the
    function, and use it."""
    if not names:
        return True
    one = "|".join(map(re.escape, sorted(names)))
    defines = rf"^\s*(?:(?:async\s+)?def|class)\s+(?:{one})\b|^\s*(?:{one})\s*(?::[^=\n]*)?=(?!=)"
    if re.search(defines, program, re.MULTILINE):
        return True
    return _may_be_body(program, tests) and _INDENTED.match(program) is not None


def _may_be_body(program: str, tests: Tests) -> bool:
    return tests.body_of is not None and not _is_whole(program, *tests.body_of)


def _is_whole(program: str, function: str, prompt: str) -> bool:
    name = re.escape(function)
    outside = r"^" if prompt.endswith("\n") else r"\n"  # where the prompt indents the body's first line
    defines = rf"\bdef\s+{name}\b|\A{name}\s*[:=]|{outside}(?=\S).*\b{name}\b"
    return re.search(defines, program, re.MULTILINE) is not None


def _free(codes: Iterable[str]) -> set[str]:
    """Names that Python uses and does not bind; those that it imports from an answer are such."""
    used: set[str] = set()
    bound = set(dir(builtins))
    for code in codes:
        if (tree := parsed(code)) is None:
            return set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
                bound.add(node.name or "")
            elif isinstance(node, ast.ImportFrom) and node.module in _IMPORTED_AS:
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return used - bound
