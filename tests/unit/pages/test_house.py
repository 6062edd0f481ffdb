"""The house in order: plain words, one name a class, named encodings, and links that lead somewhere."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from snippets import FENCED, ROOT

ONE_THING = re.compile(r"^class ((?:World|Limits|Session|Prompts|Chat|Plan|Job|Run))\b", re.MULTILINE)
BY_LOCALE = re.compile(r"\S*\.read_text\(\)|\S*\.write_text\((?!.*encoding=).*")
DENIED = re.compile(
    r"\b(told|said|somebody|nobody|whoever|(?:is|are) none|but for|of one's own|what it came to)\b", re.I
)
DENIED_NAME = re.compile(r"(?:^|_)(told|said|somebody|nobody|whoever)(?:_|$)", re.I)
BY_REFERENCE = re.compile(r"The same|As `|As for|Likewise|See ")
MOST_WORDS = 12
LINK = re.compile(r"(?:\]\(|src=\"|href=\")([^)\s\"#]*)(?:#([^)\s\"]*))?")


def tracked(*patterns: str) -> list[Path]:
    """The files of the project; those on disk where it is no clone, as in an unpacked archive."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return [path for pattern in patterns for path in ROOT.glob(f"[!.]*/**/{pattern}")]
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by it: where both are collected, one of them ends the run."""
    tests = [path for path in tracked("*test_*.py") if not path.is_relative_to(ROOT / "tests/real")]
    assert [name for name, times in Counter(path.name for path in tests).items() if times > 1] == []


def test_a_word_names_one_class() -> None:
    source = [name for path in tracked("src/*.py") for name in ONE_THING.findall(path.read_text(encoding="utf-8"))]
    assert [name for name, times in Counter(source).items() if times > 1] == []


def test_files_are_read_and_written_in_an_encoding_that_is_named() -> None:
    """Else it is the locale's, and what one machine wrote another cannot read."""
    unnamed = [
        f"{path.relative_to(ROOT)}: {call}"
        for path in tracked("src/*.py")
        for call in BY_LOCALE.findall(path.read_text(encoding="utf-8"))
    ]
    assert unnamed == []


def names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def unplain(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines and what is wrong there, by the rule of words in CONTRIBUTING."""
    for node in ast.walk(ast.parse(text)):
        yield from ((node.lineno, f"name {name}") for name in names_in(node) if DENIED_NAME.search(name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented, line = ast.get_docstring(node) or "", getattr(node, "lineno", 1)
            first = re.split(r"(?<=[.:;])\s", documented.partition("\n\n")[0])[0]
            if len(first.split()) > MOST_WORDS and not getattr(node, "name", "").startswith("_"):
                yield line, f"the first sentence has more than {MOST_WORDS} words: {first}"
            if BY_REFERENCE.match(documented):
                yield line, f"refers to another docstring: {first}"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((node.lineno, f"word {word!r}") for word in DENIED.findall(node.value.value))
    commented = any(DENIED.search(line.partition("#")[2]) for line in text.splitlines() if "#" in line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if commented else ():
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], f"word {word!r}") for word in DENIED.findall(token.string))


@pytest.mark.slow
def test_names_docstrings_and_comments_are_in_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in tracked("src/*.py", "benchmarks/*.py", "examples/*.py")
        for line, what in unplain(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "def told(): ...",
        "said = 1",
        "x = 1  # as somebody knows",
        'def run():\n    """The same, later."""',
        'class Run:\n    """A run of which one could say a great many things in a row here."""',
    ],
)
def test_a_denied_word_is_found(text: str) -> None:
    assert list(unplain(text))


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in tracked("*.md"):
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        for target, anchor in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_every_room_of_the_architecture_page_is_there_and_none_is_left_out() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    rooms = (ROOT / "src/retcon").iterdir()
    there = {room.name for room in rooms if room.suffix == ".py" or (room / "__init__.py").exists()}
    assert named == there - {"__init__.py", "__main__.py"}
