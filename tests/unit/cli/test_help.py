"""`retcon --help` lists all commands without importing any of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer.main

from retcon.cli.app import COMMANDS, app

HEAVY = {
    *("aiohttp", "cydifflib", "httpx", "huggingface_hub", "jsonschema", "msgspec", "numpy", "pydantic", "rapidfuzz"),
    *("safetensors", "starlette", "tokenizers", "torch", "transformers", "uvicorn"),
}
PROGRAM = """
import json, sys
try:
    {}
finally:
    print("\\n" + json.dumps(sorted(sys.modules)))
"""


def modules_of(statement: str) -> set[str]:
    """Modules that a fresh interpreter has imported after a statement."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(statement)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "ours"),
    [
        ("import retcon", {"retcon"}),
        (
            "sys.argv = ['retcon', '--help']; from retcon.cli.app import main; main()",
            {"retcon", "retcon.cli", "retcon.cli.app", "retcon.core", "retcon.core.errors"},
        ),
    ],
)
def test_help_and_a_bare_import_bring_no_heavy_module(statement: str, ours: set[str]) -> None:
    found = modules_of(statement)
    assert not HEAVY & found
    assert {name for name in found if name.partition(".")[0] == "retcon"} <= ours


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_help_is_the_first_paragraph_of_the_commands_own(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.name == name
    assert " ".join((command.help or "").partition("\n\n")[0].split()) == COMMANDS[name][1]
