"""The trackers that come with Retcon, with the real packages: what they have written after two sessions of a run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error", UserWarning)
from retcon.config.load import load_recipe
from retcon.runs.tracking import tracking
folder, kind, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with tracking(load_recipe(None, [f'track.to=["{kind}"]', "track.names=trl"]), folder) as track:
    for step in (first, first + 1):
        track({"step": step, "reward": step / 8, "spliced_share": 0.5})
"""


def sessions(kind: str, folder: Path, **variables: str) -> Path:
    """Two sessions of a run in `folder/own`; the second takes the last step of the first again."""
    run = folder / "own"
    run.mkdir()
    for first in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", SESSION, str(run), kind, first],
            check=True, timeout=300, env={**os.environ, **variables},
        )  # fmt: skip
    return run


def need(package: str) -> None:
    pytest.importorskip(package, reason=f"needs the package {package}: the extra [track]")


def test_tensorboard(tmp_path: Path) -> None:
    need("torch")
    need("tensorboard")
    run = sessions("tensorboard", tmp_path)
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert "retcon/spliced_share" in events.Tags()["scalars"]


def test_trackio(tmp_path: Path) -> None:
    need("trackio")
    sessions("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    import sqlite3

    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as rows:
        steps = [step for (step,) in rows.execute("select step from metrics order by step")]
        names = {name for (name,) in rows.execute("select distinct run_name from metrics")}
    assert set(steps) == {1, 2, 3}
    assert len(names) == 1


def test_wandb_offline(tmp_path: Path) -> None:
    need("wandb")
    run = sessions("wandb", tmp_path, WANDB_MODE="offline", WANDB_CACHE_DIR=str(tmp_path / "cache"))
    files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1, "one id, so that `wandb sync` makes one run of them"
    assert all(b"retcon/spliced_share" in file.read_bytes() for file in files)
