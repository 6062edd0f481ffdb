"""The quickstart, in small: the README's first command, and what it leaves behind."""

import json
import subprocess
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from commands import SRC, retcon
from retcon.store import jsonl

pytestmark = pytest.mark.torch
SMALL = (
    "run.threads=1",
    "sft.demonstrations=64", "sft.steps=4", "rl.steps=2", "rl.prompts=2", "rl.group=2", "evaluate.problems=2",
    "evaluate.samples=8",
)  # fmt: skip
FIGURES = ("pass1_t1", "pass8_t1", "failed_calls_t1", "tokens", "rollouts", "wall_s", "cpu_s")


TRACKER = """
from retcon.runs.tracking import Tracker


class Lines(Tracker):
    def __init__(self, run):
        self.file = (run.folder / f"{run.name}.txt").open("a")

    def log(self, step, metrics):
        print(step, *metrics, file=self.file)

    def close(self):
        self.file.close()
"""


def quickstart(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return retcon("quickstart", *words, "--out", out, COLUMNS="400", PYTHONPATH=f"{SRC}:{out.parent}")


def test_it_trains_compares_and_tells_and_does_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "quick"
    (tmp_path / "tracked.py").write_text(TRACKER)
    done = quickstart(out, *SMALL, "track.to=tracked:Lines", "--arms", "saar,roc")
    assert done.returncode == 0, done.stderr
    for name, steps, metric in (
        ("cold_start", 4, "loss"),
        ("saar-seed-1", 2, "reward"),
        ("roc-seed-1", 2, "reward"),
    ):
        lines = (out.joinpath(*name.split("-", 1)) / f"{name}.txt").read_text().splitlines()
        assert [line.split()[0] for line in lines] == [str(step + 1) for step in range(steps)]
        assert all(metric in line.split() for line in lines)
    for said in ("pass@1, T = 1", "failed calls, T = 1", "saar", "roc", "summary.json", "What to try next"):
        assert said in done.stdout

    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["arms"]) == {"saar", "roc"}
    assert summary["seconds"] > 0
    for part in (summary["cold_start"], *summary["arms"].values()):
        for figure in FIGURES:
            assert part[figure]["low"] <= part[figure]["mean"] <= part[figure]["high"]
    rollouts = {arm: figures["rollouts"]["mean"] for arm, figures in summary["arms"].items()}
    assert rollouts == {"saar": 8, "roc": 16}  # steps × prompts × group; RoC makes twice as many

    page = (out / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert len(list(out.glob("*.png"))) >= 4
    for folder in (out / "cold_start", *(out / arm / "seed-1" for arm in summary["arms"])):
        AutoModelForCausalLM.from_pretrained(folder / "final")
        AutoTokenizer.from_pretrained(folder / "final")
        assert len(list(jsonl.read(folder / "eval" / "trajectories-t1.jsonl"))) == 16
    assert list(jsonl.read(out / "demonstrations.jsonl"))

    again = quickstart(out, *SMALL, "--arms", "saar,roc")
    assert again.returncode == 0, again.stderr
    after = json.loads((out / "summary.json").read_text())
    assert after == summary

    changed = quickstart(out, *SMALL[:-1], "evaluate.samples=4", "--arms", "saar,roc")
    assert changed.returncode == 2
    assert "evaluate.samples was 8, is 4" in changed.stderr
