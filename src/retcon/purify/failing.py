"""Classify tool calls by name and program, and turns by statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import get_args

from retcon.core.errors import nearest
from retcon.core.texts import parse_program
from retcon.core.types import Status, ToolCall, Turn

NO_PROGRAM = "none"
"""The language of a call whose `code` is no program, but a word such as an airport's."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_RUNS = frozenset(
    {"python", "ipython", "jupyter", "code", "interpreter", "repl", "exec", "execute", "run", "bash", "shell", "sh"}
    | {"zsh", "terminal", "console", "cmd", "command", "sandbox", "script", "cell", "notebook", "powershell", "pwsh"}
    | {"test", "tests", "pytest", "eval", "evaluate", "node", "program"}
)
_LOOKS_UP = frozenset(
    {"get", "read", "list", "search", "find", "fetch", "lookup", "look", "view", "show", "open", "browse", "retrieve"}
    | {"load", "describe", "count", "check", "grep", "glob", "ls", "cat", "query", "visit", "scrape", "crawl", "web"}
    | {"goto", "page", "click", "scroll", "info", "details", "status"}
)
_SHOWS = frozenset(
    {"cat", "head", "tail", "grep", "egrep", "rg", "sed", "awk", "less", "more", "nl", "find", "ls", "cd", "echo", "wc"}
    | {"sort", "uniq", "cut", "tr", "jq", "git", "bat", "strings", "journalctl", "zcat", "tac", "true", "set", "export"}
)
"""Commands that show files: they did not raise a traceback in their output."""
_COMMANDS = re.compile(r"&&|\|\||[;|\n&]")


@lru_cache(maxsize=1024)
def words_of_name(name: str) -> frozenset[str]:
    """Split a tool's name into lower-case words: `run_shell_command`, `readFile`."""
    return frozenset(word.lower() for word in _WORD.findall(name))


def is_lookup(call: ToolCall) -> bool:
    """Whether a call reads, lists or searches: by its tool's name, or by an editor's command."""
    verb = "" if isinstance(call.arguments, str) else call.arguments.get("command")
    return looks_up(call.name) or verb == "view"


@lru_cache(maxsize=1024)
def looks_up(name: str) -> bool:
    """Whether a tool of this name reads, lists or searches."""
    return not words_of_name(name).isdisjoint(_LOOKS_UP)


@lru_cache(maxsize=1024)
def is_runner(name: str) -> bool:
    """Whether a tool of this name runs programs."""
    return not words_of_name(name).isdisjoint(_RUNS) and not looks_up(name)


def runs_program(call: ToolCall) -> bool:
    """Whether a call runs a program or a command."""
    return has_program(call) or is_runner(call.name)


def has_program(call: ToolCall) -> bool:
    """Whether a call carries a program or a command under `code`."""
    return not call.malformed and "code" in call.arguments and call.language != NO_PROGRAM


def only_shows(call: ToolCall) -> bool:
    """Whether a shell command only shows text."""
    if call.language != "shell" or not call.code:
        return False
    firsts = [command.split() for command in _COMMANDS.split(call.code) if command.strip()]
    return all(words[0].rpartition("/")[2] in _SHOWS for words in firsts)


_ACTS = re.compile(r"[A-Za-z_]\w*(?: = |\()")
"""How a program begins that binds or calls something."""


def does_nothing(code: str) -> bool:
    """Whether code is nothing but comments, `pass` and constants."""
    tree = None if _ACTS.match(code) else parse_program(code)
    return tree is not None and all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def is_noop(call: ToolCall) -> bool:
    """Whether a call runs code that does nothing."""
    return has_program(call) and does_nothing(call.code)


def is_program(call: ToolCall) -> bool:
    """Whether a call carries a program of Python's."""
    return has_program(call) and call.language != "shell"


FAILURES: frozenset[Status] = frozenset({"error", "timeout", "limit", "malformed"})


def check_failures(failures: Set[Status]) -> None:
    """Raise ValueError for a status that is no failure."""
    for status in failures - FAILURES:
        why = "never counts" if status in get_args(Status) else f"is not a status{nearest(status, FAILURES)}"
        raise ValueError(f"failures: {status!r} {why}; choose from {', '.join(sorted(FAILURES))}")


def has_failed(turn: Turn, failures: Set[Status]) -> bool:
    """Whether a call of this turn failed. A turn with an infrastructure fault did not, nor one already judged."""
    if turn.repair is not None:
        return False
    statuses = [o.status for o in turn.observations]
    return not failures.isdisjoint(statuses) and "infrastructure" not in statuses


def failed(turn: Turn) -> bool:
    """Whether a turn with all outputs failed and was not judged before."""
    return len(turn.calls) == len(turn.observations) and has_failed(turn, FAILURES)


def lacks_outputs(turn: Turn) -> bool:
    """Whether a call failed in a turn that misses an output."""
    found = turn.repair is None and not FAILURES.isdisjoint([o.status for o in turn.observations])
    return found and not failed(turn)


def works(turn: Turn) -> bool:
    """Whether all calls of a turn succeeded, beyond doubt."""
    if not turn.calls or len(turn.calls) != len(turn.observations) or turn.repair is not None:
        return False
    return all(o.status == "ok" and o.rule is None for o in turn.observations)


def turn_does_nothing(turn: Turn) -> bool:
    """Whether all calls of a turn worked, and did nothing (`pass`, comments)."""
    return works(turn) and all(map(is_noop, turn.calls))


def is_fix(turn: Turn) -> bool:
    """Whether an attempt can replace a failure: all calls succeeded, and one of them does something."""
    return works(turn) and not all(map(is_noop, turn.calls))


def user_follows(turn: Turn) -> bool:
    """Whether a user spoke between this turn and the next."""
    return "prompt" in [s.kind for s in turn.segments]


def run_starts(turns: Sequence[Turn]) -> list[int]:
    """Find where runs of failures begin; calls that do nothing continue a run, a user's words end it."""
    starts: list[int] = []
    running = False
    for n, turn in enumerate(turns):
        if failed(turn):
            if not running:
                starts.append(n)
            running = True
        elif not (running and turn_does_nothing(turn)):
            running = False
        running = running and not user_follows(turn)
    return starts


def run_end(turns: Sequence[Turn], start: int) -> tuple[int, str | None]:
    """Find the turn after a run of failures; if no fix, say why."""
    at = start
    while failed(turns[at]) or turn_does_nothing(turns[at]):
        at += 1
        if user_follows(turns[at - 1]):
            return at, "user"
        if at == len(turns):
            return at, "end"
    if works(turns[at]):
        return at, None
    return at, "unclear" if turns[at].calls else "answered"
