"""Quick blocks of README and docs run as printed (`make snippets` runs all)."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from snippets import FENCED, MINUTES, NEEDS, ROOT, RUN, SHOWN, Options, pages, read_blocks

BLOCKS = [block for page in pages() for block in read_blocks(page)]
QUICK = {block.page: None for block in BLOCKS if block.tag in RUN and Options().lacks(block) is None}
PRINTED = {"README.md": ["RepairRecord(decision='shallow'", "status='error', error_type='NameError'"]}
INDENTED = re.compile(r"\n\n((?:    .*\n)+)")


def run(page: Path) -> subprocess.CompletedProcess[str]:
    """Runs a page alone: two may have servers on one port."""
    command = [sys.executable, str(ROOT / "tests/snippets.py"), "--minutes", "0", str(page)]
    with (Path(tempfile.gettempdir()) / "retcon-snippets.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("page", QUICK, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run_as_printed(page: Path) -> None:
    done = run(page)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in PRINTED.get(page.name, []):
        assert text in done.stdout


def test_every_block_says_what_it_is() -> None:
    """By its tag, and its first line by needs and minutes that the runner knows; none is indented instead of fenced."""
    unknown = [block.where for block in BLOCKS if block.tag not in (*RUN, *SHOWN)]
    unknown += [block.where for block in BLOCKS if set(block.needs) - set(NEEDS)]
    parts = [(block, part) for block in BLOCKS if block.tag in RUN for part in block.about]
    unknown += [block.where for block, part in parts if part.startswith("takes") and not MINUTES.fullmatch(part)]
    indented = [page.name for page in pages() if INDENTED.search(FENCED.sub("", page.read_text(encoding="utf-8")))]
    assert (unknown, indented) == ([], [])
