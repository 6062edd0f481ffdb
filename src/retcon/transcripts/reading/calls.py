"""Calls as they are compared and shown, whatever the tool calls its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from retcon.purify.tools import NO_PROGRAM, is_runner, looks_up

if TYPE_CHECKING:
    from retcon.transcripts.reading.pieces import Call

_PROGRAMS = ("code", "source", "script", "python_code", "snippet", "program", "cell", "input")
_CERTAIN = ("code", "python_code")
"""Of these the ones that are a program's whatever the tool is called, unless it looks something up by a code."""
_COMMANDS = ("command", "cmd", "bash", "shell_command", "cmds", "keystrokes", "argv")
_EDITED = frozenset(
    {"path", "file_path", "filepath", "filename", "old_str", "new_str", "old_string", "new_string", "file_text"}
    | {"insert_line", "insert_text", "view_range"}
)
"""Arguments of editors, whose `command` is no more than a verb: what is done stands in these."""
_LANGUAGES = ("language", "lang", "runtime")
"""Arguments that say what language a program is in, whatever the tool is called."""
_SHELLS = frozenset(
    {"bash", "shell", "sh", "terminal", "execute_bash", "run_command", "bash_session", "run_shell"}
    | {"zsh", "console", "pwsh", "powershell", "ps1"}
)
"""Names of tools, and of languages."""


def is_shell(name: str) -> bool:
    """Whether a tool or language of this name is a shell."""
    return name.lower() in _SHELLS


def program_argument(name: str, arguments: Mapping[str, object] | str) -> tuple[Mapping[str, object] | str, str | None]:
    """Arguments with the program under `code`, as similarity compares it, whatever the tool calls it; and its language.

    That is `shell` for a shell's, whose effects cannot be told from its text; `none` where `code` is no program; else
    None. A command may be a list of words. An editor's have no program: all of them are compared.
    """
    if isinstance(arguments, str):
        return arguments, None
    told = [value for key in _LANGUAGES if key in arguments and isinstance(value := arguments[key], str)]
    named = "shell" if is_shell(name) or any(map(is_shell, told)) else None
    edited = [arguments[key] for key in _EDITED & arguments.keys()]
    if any(value is not None for value in edited) and any(isinstance(arguments.get(key), str) for key in _COMMANDS):
        return arguments, "shell"
    for key in (*_PROGRAMS, *_COMMANDS):
        value = arguments.get(key)
        if key in _COMMANDS and isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            value = " ".join(value)
        if isinstance(value, str) and (key in _COMMANDS or _is_program(name, key, value)):
            return {**arguments, "code": value}, "shell" if key in _COMMANDS else named
    return arguments, NO_PROGRAM if "code" in arguments else named


def _is_program(name: str, key: str, value: str) -> bool:
    """Whether an argument is a program: that of a tool that runs such, or one that says so and is no mere word."""
    return is_runner(name) or (key in _CERTAIN and not looks_up(name) and not value.isidentifier())


def shown_call(call: Call) -> str:
    """How a call is written in our own record of it, where the format keeps calls apart from text."""
    arguments, language = program_argument(call.name, call.arguments)
    if isinstance(arguments, str):
        return f"\n```{call.name}\n{arguments}\n```"
    if "code" in arguments and language != NO_PROGRAM:
        fence = "bash" if language == "shell" else "python"
        return f"\n```{fence}\n{arguments['code']}\n```"
    return f"\n```{call.name}\n{msgspec.json.format(msgspec.json.encode(arguments)).decode()}\n```"
