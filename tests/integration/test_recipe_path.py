"""How many modules a recipe passes on its way to a run and to a plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("option", "most"), [("--out", 15), ("--dry-run", 15)])
def test_a_recipe_passes_few_modules(option: str, most: int, tmp_path: Path) -> None:
    words = ["train", "mini/grpo", "rl.steps=1", option, *([str(tmp_path / "run")] if option == "--out" else [])]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/recipe_path.py", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
    )
    assert 5 < int(done.stdout.splitlines()[-1].split()[0]) <= most, done.stdout
