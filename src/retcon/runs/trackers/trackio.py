"""Trackio: a local database ($TRACKIO_DIR, else in the Hugging Face cache), shown by `trackio show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.runs.tracking import TrackedRun, Tracker


class Trackio(Tracker):
    """`to = ["trackio"]`. What $TRACKIO_SPACE_ID and the like say, it follows itself."""

    needs = ("trackio",)

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=run.project, name=f"{run.name}-{run.id}", config=dict(run.config), resume="allow", embed=False
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
