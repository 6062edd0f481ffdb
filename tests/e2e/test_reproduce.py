"""`retcon reproduce` in small: the page that it leaves behind, and that the same command repeats nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")
pytest.importorskip("matplotlib", reason="pictures need the [report] extra")

from commands import retcon

pytestmark = pytest.mark.torch
SMALL = (
    "run.threads=1",
    "rollout.max_tokens=120", "rollout.max_turns=2", "rl.steps=2", "rl.prompts=1", "rl.group=4", "evaluate.problems=2",
    "evaluate.samples=2", "evaluate.every=1", "evaluate.every_samples=2", "sandbox.workers=1",
)  # fmt: skip


def reproduced(out: Path) -> str:
    words = ("rstar2", *SMALL, "--quick", "--only", "errors", "--from", "base", "--out", str(out))
    done = retcon("reproduce", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_study_of_a_paper_is_run_and_told_beside_what_the_paper_says(tmp_path: Path) -> None:
    out = tmp_path / "rstar2"
    said = reproduced(out)
    page, told = (out / "reproduction.md").read_text(), json.loads((out / "reproduction.json").read_text())
    row = next(line for line in page.splitlines() if line.startswith("| tool errors of positively rewarded"))
    assert row.startswith(
        "| tool errors of positively rewarded rollouts | section 2.2.3, figure 4 | decrease; no number |"
    )
    assert "shape only" in row
    assert "**Shape only: " in page.partition("## ")[0]
    assert "| roc | mini/rstar2 |" in page
    assert "not a finding" in page
    assert "not a finding" in said
    (study,) = told["studies"]
    assert study["name"] == "errors"
    assert study["figures"]["failed_calls_t1"]["arms"].keys() == {"grpo", "roc"}
    for picture in (line for line in page.splitlines() if line.startswith("![")):
        assert (out / picture.partition("(")[2].rstrip(")")).is_file()
    assert "reproduction.md" in said
    again = reproduced(out)
    assert "jobs to do" not in again, "all of it is there"
    assert (out / "reproduction.md").read_text() == page
