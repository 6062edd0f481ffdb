"""Weights & Biases: to its server, or with WANDB_MODE=offline into the run folder, for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.runs.tracking import TrackedRun, Tracker


class WandB(Tracker):
    """`to = ["wandb"]`. Key, server and mode are as its own variables say (WANDB_API_KEY, WANDB_MODE, …)."""

    needs = ("wandb",)

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            config=dict(run.config),
            dir=str(run.folder),
            settings=wandb.Settings(silent=True, console="off"),  # the run's own lines are not to be taken over
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
