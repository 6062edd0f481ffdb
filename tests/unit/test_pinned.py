"""The environments of `make integration` are pinned whole: `tests/pinned.py`."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pinned

ROOT = Path(__file__).parents[2]
CONSTRAINTS = str(ROOT / "constraints.txt")
FILES = [*sorted((ROOT / "tests/plugins").rglob("*.txt")), ROOT / "tests/real/requirements.txt",
         ROOT / "recipes/verl/requirements.txt"]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_line_has_a_version(file: Path) -> None:
    known = pinned.pins([CONSTRAINTS, str(file)])
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert not [line for line in lines if pinned.name_of(re.split(r"[\[=]", line)[0]) not in known]


def test_the_last_pin_of_a_name_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("# b==9\nA_b==1.0\nc==2\n")
    second.write_text("a-B[x,y]==1.1  # newer\n")
    assert pinned.pins([str(first), str(second), "d==3"]) == {"a-b": "1.1", "c": "2", "d": "3"}


def test_what_is_pinned_nowhere_or_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pinned.py", "check", "pytest==0.1"])
    with pytest.raises(SystemExit) as said:
        pinned.main()
    lines = str(said.value).splitlines()
    assert f"  pytest=={version('pytest')} is installed, and 0.1 pinned" in lines
    assert f"  numpy=={version('numpy')} is pinned nowhere" in lines
    assert not any(line.startswith("  retcon") for line in lines)


def test_what_pip_would_install_beside_the_pins_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"retcon-rl": "0.1", "Ray": "2.60.0", "torch": "2.12.0", "flash_attn": "2.8.3"}
    about = [{"metadata": {"name": name, "version": version}} for name, version in found.items()]
    (tmp_path / "report.json").write_text(json.dumps({"install": about}))
    monkeypatch.setattr(
        sys, "argv", ["pinned.py", "report", str(tmp_path / "report.json"), "ray==2.60.0", "torch==2.11.0"]
    )
    with pytest.raises(SystemExit) as said:
        pinned.main()
    assert str(said.value).splitlines()[1:] == [
        "  flash-attn==2.8.3 is pinned nowhere",
        "  torch==2.12.0 is installed, and 2.11.0 pinned",
    ]
