"""What keeps the house in order: one name a class, encodings that are named, and links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from snippets import FENCED, ROOT

ONE_THING = re.compile(r"^class ((?:World|Limits|Session|Prompts|Chat|Plan|Job|Run))\b", re.MULTILINE)
BY_LOCALE = re.compile(r"\S*\.read_text\(\)|\S*\.write_text\((?!.*encoding=).*")
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
