"""`retcon quickstart smollm2`, in small: the tiny model, files in place of the hub, killed and gone on with."""

import json
import signal
import time
from pathlib import Path

import pytest

from commands import retcon, started
from retcon.store import jsonl

pytestmark = pytest.mark.torch
SMALL = (
    "run.threads=1",
    "model.path=base", "sft.demonstrations=8", "sft.steps=6", "sft.batch=4", "sft.checkpoint_every=1", "rl.steps=2",
    "rl.prompts=2", "rl.group=2", "rl.checkpoint_every=1", "evaluate.problems=8", "evaluate.samples=2",
)  # fmt: skip


def problems(file: Path, first: int) -> Path:
    """Problems as GSM8K has them, annotated; all different."""
    rows = []
    for n in range(first, first + 12):
        rows.append(
            {
                "question": f"anna has {n} boxes of {n + 3} pens. she gives away {n + 1} pens. how many are left?",
                "answer": f"She has {n} * {n + 3} = <<{n}*{n + 3}={n * (n + 3)}>>{n * (n + 3)} pens.\n"
                f"She has {n * (n + 3)} - {n + 1} = <<{n * (n + 3)}-{n + 1}={n * (n + 3) - n - 1}>>"
                f"{n * (n + 3) - n - 1} left.\n#### {n * (n + 3) - n - 1}",
            }
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """The command that all tests here give, in the folder that it is given."""
    train, evaluation = problems(tmp_path / "train.jsonl", 5), problems(tmp_path / "test.jsonl", 105)
    return (
        "quickstart", "smollm2", *SMALL, "--data", str(train), "--eval-data", str(evaluation), "--out",
        str(tmp_path / "out"),
    )  # fmt: skip


def test_it_is_planned_killed_gone_on_with_and_compared(words: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started(*words) as process:
        while not (out / "cold_start" / "metrics.jsonl").exists():
            assert process.running, process.finish()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        told = process.finish().stderr
    assert "The plan" in told
    assert "saar, seed 1" in told

    done = retcon(*words)
    assert done.returncode == 0, done.stderr
    assert "The plan" not in done.stderr  # it was begun: nothing is measured again
    for said in ("pass@1, T = 1", "baseline", "saar", "What to try next", "quickstart smollm2"):
        assert said in done.stdout
    assert "top-p" not in done.stdout  # one setting

    demonstrations = list(jsonl.read(out / "demonstrations.jsonl"))
    assert len(demonstrations) == 8
    assert all(one.reward == 1 for one in demonstrations)
    summary = json.loads((out / "summary.json").read_text())
    assert {arm: figures["rollouts"]["mean"] for arm, figures in summary["arms"].items()} == {"baseline": 8, "saar": 8}
    for folder in (out / "cold_start", *(out / arm / "seed-1" for arm in summary["arms"])):
        measured = list(jsonl.read(folder / "eval" / "trajectories-t1.jsonl"))
        assert len(measured) == 16
        assert {one.task for one in measured}.isdisjoint({one.task for one in demonstrations})
        assert not (folder / "eval" / "trajectories-top_p.jsonl").exists()

    again = retcon(*words)
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "summary.json").read_text()) == summary
    other = retcon(*words, "rl.steps=3")
    assert other.returncode == 2
    assert "rl.steps was 2, is 3" in other.stderr
