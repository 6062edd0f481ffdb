"""Every command that the documentation shows can be typed: its options, recipes and keys exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from rich.text import Text
from test_house import ROOT, tracked

from retcon.cli.app import app
from retcon.config.load import all_keys, shipped_recipes
from retcon.config.schema import CHANGED, OWN, SECTIONS
from snippets import FENCED

PAGES = [page for page in tracked("README.md", "CONTRIBUTING.md", "docs/*.md") if page.name != "log.md"]
SOURCES = [*PAGES, *tracked("examples/*", "recipes/*")]
pytestmark = pytest.mark.skipif(not PAGES, reason="needs a clone of the project, whose files git lists")
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
COMMENTED = re.compile(r"(?:^#     .*\n)+", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(retcon [^`]+)`(?!`)", re.DOTALL)
OVERRIDE = re.compile(r"(\w+(?:\.\w+)+)=")


def blocks(text: str) -> Iterator[str]:
    """Fenced blocks, indented ones, and those indented in comments."""
    yield from (block for *_, block in FENCED.findall(text))
    yield from INDENTED.findall(FENCED.sub("", text))
    yield from (re.sub(r"^#", "", block, flags=re.MULTILINE) for block in COMMENTED.findall(text))


def commands(file: Path) -> Iterator[list[str]]:
    """The words of each `retcon …` in a file, without `retcon`; elisions (`…`) are left out."""
    text = file.read_text(encoding="utf-8")
    lines = [line for block in blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *(" ".join(shown.split()) for shown in INLINE.findall(text))]:
        with_marks = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
        with_marks.whitespace_split = True
        try:
            words = list(with_marks)
        except ValueError:  # an apostrophe: not a line of a shell
            continue
        while words:
            end = next((n for n, word in enumerate(words) if word and set(word) <= set(";|&<>")), len(words))
            first, words = [word for word in words[:end] if word not in ("…", "...")], words[end + 1 :]
            while first and (first[0] == "$" or "=" in first[0]):  # a prompt, and variables
                first = first[1:]
            if first and first[0] == "retcon":
                yield first[1:]


SHOWN = [(file, words) for file in SOURCES for words in commands(file)]


@cache
def tool() -> typer.core.TyperGroup:
    return typer.main.get_command(app)


def every_command(group: typer.core.TyperGroup) -> Iterator[typer.core.TyperCommand]:
    for command in group.commands.values():
        yield command
        yield from every_command(command) if isinstance(command, typer.core.TyperGroup) else ()


def fault(words: list[str]) -> str | None:
    """What is wrong with a command."""
    command, rest = tool(), list(words)
    while rest and isinstance(command, typer.core.TyperGroup) and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    options = {"-h", "--help", *(name for given in command.params for name in (*given.opts, *given.secondary_opts))}
    for before, word in zip(["", *rest], rest, strict=False):
        if re.match(r"-[^\d]", word) and word.partition("=")[0] not in options:
            return f"no option {word} of {command.name}"
        if before != "--set" and (said := wrong_key(word) or wrong_recipe(word)):
            return said
    return None


def wrong_key(word: str) -> str | None:
    """Of a change to a recipe, `section.key=value`."""
    if (found := OVERRIDE.match(word)) is None:
        return None
    section, *key = found[1].split(".")
    if section == "stages":
        key, section = key[2:], key[1]
        if not key:
            return None if section in OWN else f"no key {section} of a stage"
    there = SECTIONS if word.partition(".")[0] != "stages" else CHANGED
    return None if section in there and ".".join(key) in all_keys(section) else f"no key {found[1]}"


def wrong_recipe(word: str) -> str | None:
    folders = {name.partition("/")[0] for name in shipped_recipes() if "/" in name}
    folder, slash, _ = word.partition("/")
    return f"no recipe {word}" if slash and folder in folders and word not in shipped_recipes() else None


def test_extras_are_there_and_are_installed_from_the_clone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = {file: file.read_text(encoding="utf-8") for file in SOURCES}
    from_index = {file: found for file, text in texts.items() if (found := re.findall(r"retcon-rl\[.*", text))}
    assert not from_index, "on no index: `pip install -e '.[…]'`, or the extra `[…]`"
    named = {
        (file, name)
        for file, text in texts.items()
        for names in re.findall(r"'\.\[([\w,]+)\]'", text)
        for name in names.split(",")
    }
    assert {(file, name) for file, name in named if name not in extras} == set()


@pytest.mark.slow
def test_commands_that_are_shown_can_be_typed() -> None:
    faults = [(str(file.relative_to(ROOT)), " ".join(words), fault(words)) for file, words in SHOWN]
    assert [found for found in faults if found[2]] == []


def test_nothing_is_read_past() -> None:
    assert len(SHOWN) > 150


def test_helps_show_every_word() -> None:
    """To rich, a word in brackets is a style, and vanishes unless it is escaped."""
    helps = [
        given.help for command in every_command(tool()) for given in command.params if getattr(given, "help", None)
    ]
    helps += [command.help for command in every_command(tool()) if command.help]
    styles = {str(span.style) for text in helps for span in Text.from_markup(text).spans}
    assert styles <= {"bold", "b", "dim"}


def test_examples_in_helps_are_of_keys_that_the_command_reads() -> None:
    """`retcon ask` takes no step of training."""
    examples = [
        (command.name, key)
        for command in every_command(tool())
        for given in command.params
        if given.param_type_name == "argument"
        for key in OVERRIDE.findall(given.help or "")
    ]
    assert [key for _, key in examples if wrong_key(f"{key}=")] == []
    without = {"demos", "sft", "ask", "serve-agent"}
    assert [(name, key) for name, key in examples if name in without and key.startswith("rl.")] == []


def test_helps_name_arguments_in_capitals() -> None:
    given = [(command.name, one) for command in every_command(tool()) for one in command.params]
    named = [(name, one.metavar or one.name) for name, one in given if one.param_type_name == "argument"]
    assert [pair for pair in named if re.search(r"[a-z]{2}", pair[1])] == []
