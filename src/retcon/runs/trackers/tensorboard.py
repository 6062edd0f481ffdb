"""TensorBoard: event files in the run folder, under `tensorboard/`, with torch's writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.runs.tracking import TrackedRun, Tracker


class TensorBoard(Tracker):
    """`to = ["tensorboard"]`; `tensorboard --logdir runs` shows every run below `runs`."""

    needs = ("torch", "tensorboard")

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier session logged of steps that are taken again is hidden from then on.
        self._writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.step or None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
