"""Quick blocks of README and docs run as printed (`make snippets` runs all)."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from snippets import FENCED, MINUTES, NEEDS, ROOT, RUN, SHOWN, Options, agrees, pages, read_blocks

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


FAULTS = [
    ("python", "x = 1\nprint(1 / 0)", "line 3, in <module>"),
    ("python", "1 + 1  # 3", "line 6: 2, and shown is 3"),
    ("bash", "false\ntrue", "exit code 1"),
    ("console", '$ echo \'{"a": 1}\'\n{"b": 1}', 'shown:\n{"b": 1}'),
    ("toml", "[rl]\nstep = 3", "unknown key 'step' in [rl]"),
]


def test_blocks_that_do_not_run_as_printed_are_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(f"```{tag}\n{text}\n```\n" for tag, text, _ in FAULTS), encoding="utf-8")
    done = run(page)
    assert done.returncode == 1
    assert [printed for *_, printed in FAULTS if printed not in done.stdout] == []
    assert "5 blocks: failed 5" in done.stdout


def test_what_was_run_and_what_was_not_is_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    python = [
        "# mine.py\ndef two():\n    return 2\n",
        "import mine\n\nmine.two() + two()  # 4\n",
        "# needs podman\n1 / 0\n",
    ]
    blocks = [("python", text) for text in python] + [("bash", "# takes 3 minutes\nfalse\n"), ("text", "never run …\n")]
    page.write_text("".join(f"```{tag}\n{text}```\n" for tag, text in blocks), encoding="utf-8")
    done = run(page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "4 blocks: ran 2, needs podman 1, takes minutes 1"


@pytest.mark.parametrize(
    ("shown", "printed", "agree"),
    [
        ('{"seconds":0.01,\n "id":"4b1e8a5cab7347629c1a8b85"}', '{"seconds":1.5e-3,"id":"16003a5c-ab73-4762"}', True),
        ('{"status":"ok",…}', '{"status":"ok","value":"42"}', True),
        ('{"status":"ok"}', '{"status":"error"}', False),
        ("", "anything", True),
    ],
)  # fmt: skip
def test_outputs_agree_up_to_numbers_and_ids(shown: str, printed: str, agree: bool) -> None:
    assert agrees(shown, printed) is agree
