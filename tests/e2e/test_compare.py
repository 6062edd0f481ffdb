"""`retcon compare` in small: what it leaves behind, and that a kill changes nothing of it."""

from __future__ import annotations

import json
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")
pytest.importorskip("matplotlib", reason="pictures need the [report] extra")

from commands import Command, started

pytestmark = pytest.mark.torch
ARMS = ("mini/dapo-baseline", "mini/cleaner")
STEPS = 4
SMALL = (
    "run.threads=1",
    "rollout.max_tokens=120", "rollout.max_turns=2", "rollout.lookahead_tokens=40", f"rl.steps={STEPS}", "rl.prompts=1",
    "rl.group=4", "rl.checkpoint_every=1", "evaluate.problems=2", "evaluate.samples=2", "evaluate.every=2",
    "evaluate.every_samples=2", "sandbox.workers=1",
)  # fmt: skip
OF_THE_CLOCK = ("wall_s", "cpu_s", "cpu_ms")


def comparing(out: Path, *words: str) -> AbstractContextManager[Command]:
    options = ("--from", "base", "--seeds", "1", "--faults", "0", "--out", out)
    return started("compare", *ARMS, *SMALL, *options, *words)


def compared(out: Path) -> str:
    with comparing(out) as command:
        done = command.finish()
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def steps(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def that_work_on(out: Path) -> list[Path]:
    """Processes, as folders of /proc, with a folder of `out` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(out) in (folder / "cmdline").read_text(errors="replace"):
                found.append(folder)
        except OSError:  # it ended while we looked
            continue
    return found


def kill_at(out: Path, folder: Path, step: int) -> None:
    """Starts the comparison and kills it -9 when the run in `folder` has taken so many steps; waits until all that it
    started is gone."""
    with comparing(out, "--jobs", "1") as command:
        while steps(folder) < step:
            assert command.running, command.finish()
            time.sleep(0.01)
        command.send_signal(signal.SIGKILL)
    while that_work_on(out):
        time.sleep(0.01)


def left_behind(out: Path) -> dict[str, object]:
    """All that a comparison found, but for what the clock says: figures, metrics, weights."""
    told = json.loads((out / "compare.json").read_text())
    del told["seconds"]
    (cell,) = told["cells"]
    del cell["name"]
    for arm in cell["arms"].values():
        for figures in (arm, arm.get("difference", {})):
            for name in [name for name in figures if name.startswith(OF_THE_CLOCK)]:
                del figures[name]
    lines = {}
    for arm in ("dapo-baseline", "cleaner"):
        text = (out / arm / "seed-0" / "metrics.jsonl").read_text()
        lines[arm] = [
            {
                k: v
                for k, v in json.loads(line).items()
                if not k.startswith("engine_") and not k.endswith(("_s", "seconds", "_second"))
            }
            for line in text.splitlines()
        ]
        lines[f"{arm} weights"] = (out / arm / "seed-0" / "final" / "model.safetensors").read_bytes()
    return {"told": told, **lines}


def test_a_comparison_that_is_killed_and_goes_on_ends_as_one_that_is_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = compared(whole)
    for word in ("pass@1", "purification on", "compare.json", "not a finding", "What to try next", "retcon show"):
        assert word in said
    found = left_behind(whole)

    kill_at(killed, killed / "cleaner" / "seed-0", STEPS // 2)
    done = (killed / "dapo-baseline" / "seed-0" / "final" / "model.safetensors").stat().st_mtime_ns
    compared(killed)
    assert left_behind(killed) == found
    assert (killed / "dapo-baseline" / "seed-0" / "final" / "model.safetensors").stat().st_mtime_ns == done

    again = compared(whole)
    assert "stages to do" not in again
    assert left_behind(whole) == found
