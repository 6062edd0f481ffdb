"""Before a server ends: it takes nothing new, and what is open with it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from retcon.http.refusal import RequestRefused

_OPEN_SESSIONS = "/v1/sessions/"


@dataclass(slots=True)
class Draining:
    """seconds: for what is open; 0: it gets none. busy: how many calls and sessions are open. Begins with `begin`."""

    seconds: float
    busy: Callable[[], int]
    _until: float | None = None

    @property
    def on(self) -> bool:
        return self._until is not None

    def begin(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        """Whether nothing is open any more, or its time is up."""
        return self._until is not None and (time.monotonic() >= self._until or not self.busy())

    def refused(self, method: str, path: str) -> RequestRefused | None:
        """What a request is told that would begin something; also whoever asks whether the server is there."""
        if not self.on or path.startswith(_OPEN_SESSIONS) or (method == "GET" and path != "/health"):
            return None
        return RequestRefused(503, "draining", "this server is about to end and takes nothing new: ask another one")
