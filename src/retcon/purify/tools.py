"""Classify tool calls by name, arguments and program."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from retcon.core.programs import parse_program
from retcon.core.types import ToolCall

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
